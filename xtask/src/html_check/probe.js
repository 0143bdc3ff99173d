// Looks at the page that it stands in, and writes its height and a line for each fault into a `pre`.
addEventListener("load", () => setTimeout(() => {
  const faults = [];
  const fault = (text) => { if (faults.length < 40) faults.push(text); };
  const height = document.documentElement.scrollHeight;
  const root = document.documentElement;

  /** Red, green, blue between 0 and 1, and how opaque. */
  const parsed = (text) => {
    const hex = /^#([0-9a-f]{6})$/i.exec(text);
    if (hex) return [0, 2, 4].map((at) => parseInt(hex[1].slice(at, at + 2), 16) / 255).concat(1);
    const numbers = text.match(/[\d.]+/g).map(Number);
    return numbers.slice(0, 3).map((n) => n / 255).concat(numbers[3] ?? 1);
  };
  const luminance = (color) => {
    const [r, g, b] = color.map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [more, less] = [luminance(a), luminance(b)].sort((x, y) => y - x);
    return (more + 0.05) / (less + 0.05);
  };
  const name = (e) => `${e.tagName.toLowerCase()}${e.id ? "#" + e.id : ""}.${e.className} "${e.textContent.trim().slice(0, 30)}"`;
  const variable = (key) => parsed(getComputedStyle(root).getPropertyValue("--" + key).trim());

  // The theme is the one that was asked for.
  const isDark = luminance(parsed(getComputedStyle(document.body).backgroundColor)) < 0.2;
  if (isDark !== (location.hash === "#dark")) fault(`expected the theme ${location.hash}, found a ${isDark ? "dark" : "light"} page`);

  // Nothing is wider than the window.
  if (root.scrollWidth > innerWidth) fault(`expected at most ${innerWidth} pixels, found a page of ${root.scrollWidth}`);

  // Every section has something in it, and every drawing ink.
  for (const section of document.querySelectorAll("section")) {
    if (section.offsetHeight < 50 || section.textContent.trim().length < 20) fault(`empty: ${section.id}`);
  }
  for (const canvas of document.querySelectorAll("canvas")) {
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const kinds = new Set();
    for (let i = 0; i < pixels.length; i += 4 * 7) if (pixels[i + 3] > 0) kinds.add(pixels[i] << 16 | pixels[i + 1] << 8 | pixels[i + 2]);
    if (kinds.size < 4) fault(`expected a drawing, found ${kinds.size} colours: ${canvas.getAttribute("aria-label").slice(0, 40)}`);
  }

  // Texts: readable, and none over another.
  const isShown = (e) => e.checkVisibility() && e.getClientRects().length > 0;
  const hasText = (e) => [...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.data.trim());
  const texts = [...document.body.querySelectorAll("*")].filter((e) =>
    !["SCRIPT", "STYLE", "NOSCRIPT"].includes(e.tagName) && !e.closest(".spoken, .tip") && hasText(e) && isShown(e));
  const ground = (e) => {
    for (let at = e; at; at = at.parentElement) {
      const color = parsed(getComputedStyle(at).backgroundColor);
      if (color[3] > 0.99) return color.slice(0, 3);
    }
    return [1, 1, 1];
  };
  for (const e of texts.slice(0, 4000)) {
    const found = contrast(parsed(getComputedStyle(e).color).slice(0, 3), ground(e));
    if (found < 4.5) fault(`contrast ${found.toFixed(2)}: ${name(e)}`);
  }
  const boxes = texts.slice(0, 900).flatMap((e) => {
    const range = document.createRange();
    return [...e.childNodes].filter((n) => n.nodeType === Node.TEXT_NODE && n.data.trim()).flatMap((node) => {
      range.selectNodeContents(node);
      // What a box that scrolls hides does not lie over anything.
      const clip = e.closest(".scroll")?.getBoundingClientRect();
      return [...range.getClientRects()].map((r) => ({
        e, top: r.top, bottom: r.bottom, left: r.left, right: clip ? Math.min(r.right, clip.right) : r.right,
      })).filter((r) => r.right - r.left > 1);
    });
  });
  for (let i = 0; i < boxes.length; i++) {
    for (let j = i + 1; j < boxes.length; j++) {
      const [a, b] = [boxes[i], boxes[j]];
      const [wide, high] = [Math.min(a.right, b.right) - Math.max(a.left, b.left), Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)];
      if (wide > 1.5 && high > 4 && a.e !== b.e) fault(`one over the other: ${name(a.e)} and ${name(b.e)}`);
    }
  }

  // The colours of drawings.
  for (const key of ["text", "muted", "before", "after"]) {
    if (contrast(variable(key), variable("panel")) < 4.5) fault(`contrast of ${key} on drawings`);
  }
  const kinds = ["kernel", "product", "copy", "all-reduce", "reduce-scatter", "all-gather", "all-to-all", "permute"];
  for (const key of kinds) {
    const found = [contrast(variable(key), variable("bar-text")), contrast(variable(key), variable("idle"))];
    if (found[0] < 4.5 || found[1] < 3) fault(`contrast of ${key}: ${found.map((n) => n.toFixed(2))}`);
  }
  if (contrast(variable("rounds"), variable("rounds-text")) < 4.5) fault("contrast of rounds");

  // Zoom, moves and keys.
  for (const canvas of document.querySelectorAll("canvas")) {
    const shown = () => [Number(canvas.dataset.from), Number(canvas.dataset.to)];
    const length = () => shown()[1] - shown()[0];
    const box = canvas.getBoundingClientRect();
    const at = {clientX: box.left + box.width / 2, clientY: box.top + 60, bubbles: true, cancelable: true, pointerId: 1};
    const key = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
    const whole = length();
    canvas.dispatchEvent(new WheelEvent("wheel", {...at, deltaY: -300}));
    if (!(length() < whole * 0.6)) fault(`the wheel does not zoom: ${length()} of ${whole}`);
    const first = shown()[0];
    key("ArrowRight");
    if (!(shown()[0] > first)) fault("the arrow does not move");
    key("-");
    key("0");
    if (Math.abs(length() - whole) > whole * 1e-9) fault(`0 does not show all: ${length()} of ${whole}`);
    canvas.dispatchEvent(new PointerEvent("pointermove", {...at, clientX: box.left + box.width * 0.2}));
    const chart = canvas.parentElement;
    key("n");
    const isTimeline = chart.dataset.chart === "timeline";
    if (isTimeline && !chart.querySelector(".spoken").textContent) fault("n says nothing");
    const tip = chart.querySelector(".tip");
    if (tip.hidden) fault(`no words about a place of the ${chart.dataset.chart}`);
    const [words, page] = [tip.getBoundingClientRect(), root.clientWidth];
    if (words.left < 0 || words.right > page) fault(`words outside the window: ${words.left}–${words.right}`);
    key("Escape");
    if (!tip.hidden) fault("Escape leaves the words");
  }

  // Sorting by a column of numbers puts the largest first.
  for (const table of document.querySelectorAll("table.sortable")) {
    const column = [...table.tHead.rows[0].cells].findIndex((cell) => cell.classList.contains("number"));
    table.tHead.rows[0].cells[column].querySelector("button").click();
    const values = [...table.tBodies[0].rows].map((row) => Number(row.cells[column].dataset.value ?? -Infinity));
    if (values.some((value, i) => i > 0 && value > values[i - 1])) fault(`not sorted: ${table.id}`);
    if (table.querySelectorAll("th[aria-sort=descending]").length !== 1) fault(`no mark of the order: ${table.id}`);
  }
  const pre = document.createElement("pre");
  pre.id = "probe";
  pre.textContent = [height, ...faults].join("\n");
  document.body.append(pre);
}, 300));
addEventListener("error", (event) => {
  const pre = document.createElement("pre");
  pre.id = "probe";
  pre.textContent = `900\nerror: ${event.message} at line ${event.lineno}`;
  document.body.append(pre);
});
