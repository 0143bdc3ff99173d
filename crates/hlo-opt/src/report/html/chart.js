// A drawing over one horizontal axis, of which a part can be shown: by wheel, by dragging, by buttons and by keys.

const SVG_LIKE_DIGITS = [1, 2, 5, 10];

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** The value of a colour of the style sheet, for canvases. */
function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

/** Seconds, as the summary shows them. */
function timeText(s) {
  if (s < 10e-3) return (s * 1e6).toFixed(1) + " µs";
  if (s < 10) return (s * 1e3).toFixed(1) + " ms";
  return s.toFixed(1) + " s";
}

/** Bytes, as the summary shows them. */
function bytesText(n) {
  const units = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];
  const unit = units.find(([size]) => n >= size);
  return unit ? (n / unit[0]).toFixed(1) + " " + unit[1] : n + " B";
}

/** Round numbers between `from` and `to`, at most so many. */
function ticks(from, to, most) {
  const rough = (to - from) / Math.max(most, 1);
  if (!(rough > 0)) return [];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * SVG_LIKE_DIGITS.find((digit) => digit * power >= rough * 0.999);
  const marks = [];
  for (let n = Math.ceil(from / step); n * step <= to; n++) marks.push([n * step, step]);
  return marks;
}

/** The beginning of a text that fits into so many pixels; nothing if hardly a letter fits. */
function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  const n = Math.floor(text.length * width / context.measureText(text).width) - 1;
  return n >= 3 ? text.slice(0, n) + "…" : "";
}

class Chart {
  /**
   * `picture` has: `end`, the length of the axis; `least`, the shortest part that can be shown; `height`;
   * `draw(chart, context)`; `at(x, y)`, the words about a place in pixels; `next(from, step)`, for keys; `axisText(value, step)`.
   */
  constructor(box, picture) {
    this.picture = picture;
    this.label = box.dataset.label;
    this.canvas = element("canvas", {
      tabindex: "0", role: "img", "aria-label": this.label + ". " + picture.summary, class: "drawing",
    });
    this.words = element("div", {class: "tip", hidden: ""});
    this.spoken = element("p", {class: "spoken", "aria-live": "polite"});
    const button = (text, label, act) => {
      const made = element("button", {type: "button", "aria-label": label, title: label}, text);
      made.addEventListener("click", act);
      return made;
    };
    const buttons = element("span", {class: "buttons"},
      button("+", "Show less, larger", () => this.zoom(0.5)),
      button("−", "Show more, smaller", () => this.zoom(2)),
      button("Whole", "Show all", () => this.show(0, this.picture.end)));
    const hint = element("small", {}, (this.picture.hint || "") + "Wheel or + and − to zoom, drag or arrows to move, 0 for all" +
      (picture.next ? ", n and p for the next and the previous task" : ""));
    box.replaceChildren(element("div", {class: "tools"}, picture.legend(), buttons), this.canvas, hint,
      this.words, this.spoken);
    this.listen();
    this.show(0, picture.end);
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    addEventListener("beforeprint", () => this.draw());
    addEventListener("afterprint", () => this.draw());
  }

  listen() {
    const canvas = this.canvas;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.move(event.deltaX / this.width);
      else this.zoom(2 ** (Math.max(-3, Math.min(3, event.deltaY / 100)) * 0.5), place(event)[0]);
    }, {passive: false});
    let dragged = null;
    canvas.addEventListener("pointerdown", (event) => {
      dragged = place(event)[0];
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = place(event);
      if (dragged !== null) {
        this.move((dragged - x) / this.width);
        dragged = x;
      }
      this.tell(this.picture.at(this, x, y), x, y);
    });
    canvas.addEventListener("pointerup", () => { dragged = null; });
    canvas.addEventListener("pointerleave", () => this.tell(null));
    canvas.addEventListener("dblclick", (event) => this.zoom(0.25, place(event)[0]));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => this.tell(null));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const acts = {
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
      "0": () => this.show(0, this.picture.end), Home: () => this.show(0, this.picture.end),
      ArrowLeft: () => this.move(-0.1), ArrowRight: () => this.move(0.1),
      n: () => this.step(1), p: () => this.step(-1), Escape: () => this.tell(null),
    };
    const act = acts[event.key];
    if (act) {
      event.preventDefault();
      act();
    }
  }

  /** Goes to the next or the previous thing on the drawing and says what it is. */
  step(by) {
    if (!this.picture.next) return;
    const found = this.picture.next(this, by);
    if (!found) return;
    if (found.start < this.from || found.start > this.to) {
      const half = (this.to - this.from) / 2;
      this.show(found.start - half, found.start + half);
    }
    this.draw();
    this.tell(found.words, Math.max(this.x(found.start), 0), found.y);
    this.spoken.textContent = found.words.join(", ");
  }

  get width() { return this.canvas.clientWidth; }

  x(value) { return (value - this.from) / (this.to - this.from) * this.width; }

  value(x) { return this.from + x / this.width * (this.to - this.from); }

  show(from, to) {
    const {end, least} = this.picture;
    const length = Math.min(Math.max(to - from, least), end);
    this.from = Math.min(Math.max(from, 0), end - length);
    this.to = this.from + length;
    this.canvas.dataset.from = this.from;
    this.canvas.dataset.to = this.to;
    this.draw();
  }

  zoom(factor, x = this.width / 2) {
    const fixed = this.value(x);
    this.show(fixed - (fixed - this.from) * factor, fixed + (this.to - fixed) * factor);
  }

  move(share) {
    const by = (this.to - this.from) * share;
    this.show(this.from + by, this.to + by);
  }

  tell(words, x, y) {
    this.words.hidden = !words;
    if (!words) return;
    this.words.replaceChildren(...words.map((line) => element("div", {}, line)));
    const {offsetLeft, offsetTop} = this.canvas;
    const left = Math.min(x + 12, this.width - this.words.offsetWidth);
    this.words.style.left = offsetLeft + Math.max(left, 0) + "px";
    this.words.style.top = offsetTop + y + 18 + "px";
  }

  draw() {
    const {canvas, picture, width} = this;
    if (width === 0) return;
    const dots = devicePixelRatio || 1;
    const height = picture.height;
    if (canvas.width !== Math.round(width * dots) || canvas.height !== Math.round(height * dots)) {
      canvas.width = Math.round(width * dots);
      canvas.height = Math.round(height * dots);
      canvas.style.height = height + "px";
    }
    const context = canvas.getContext("2d");
    context.setTransform(dots, 0, 0, dots, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.axis(context, height);
    picture.draw(this, context);
  }

  axis(context, height) {
    const {picture, width} = this;
    context.textAlign = "center";
    for (const [value, step] of ticks(this.from, this.to, width / 90)) {
      const x = this.x(value);
      context.fillStyle = color("grid");
      context.fillRect(Math.round(x), 0, 1, height - 20);
      const text = picture.axisText(value, step);
      const half = context.measureText(text).width / 2;
      context.fillStyle = color("muted");
      if (x - half >= 0 && x + half <= width) context.fillText(text, x, height - 9);
      else if (x < half && x >= 0) {
        context.textAlign = "left";
        context.fillText(text, 0, height - 9);
        context.textAlign = "center";
      }
    }
    context.textAlign = "left";
  }
}
