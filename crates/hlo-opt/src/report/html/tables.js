// Tables: sorted by a column, and folded where they are long.

const FOLDED = 25;

function cellValue(row, column, isNumber) {
  const cell = row.cells[column];
  if (!isNumber) return cell.textContent;
  return "value" in cell.dataset ? Number(cell.dataset.value) : -Infinity;
}

function sortBy(table, column, header) {
  const isNumber = header.classList.contains("number");
  const wasDown = header.getAttribute("aria-sort") === "descending";
  const wasUp = header.getAttribute("aria-sort") === "ascending";
  const isDown = isNumber ? !wasDown : wasUp;
  const rows = [...table.tBodies[0].rows].map((row) => [cellValue(row, column, isNumber), row]);
  const compare = isNumber ? (a, b) => a[0] - b[0] : (a, b) => a[0].localeCompare(b[0], "en", {numeric: true});
  rows.sort((a, b) => isDown ? compare(b, a) : compare(a, b));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", isDown ? "descending" : "ascending");
  table.tBodies[0].append(...rows.map(([, row]) => row));
  fold(table);
}

/** Hides all rows but the first, unless the reader asked for all. */
function fold(table) {
  [...table.tBodies[0].rows].forEach((row, number) => {
    row.hidden = !table.dataset.all && number >= FOLDED;
  });
}

function prepareTable(table) {
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    const button = element("button", {type: "button"}, header.textContent);
    button.addEventListener("click", () => sortBy(table, column, header));
    header.replaceChildren(button);
  });
  const n = table.tBodies[0].rows.length;
  if (n <= FOLDED) return;
  fold(table);
  const more = element("button", {type: "button", class: "more"}, `Show all ${n} rows`);
  more.addEventListener("click", () => {
    table.dataset.all = table.dataset.all ? "" : "yes";
    more.textContent = table.dataset.all ? `Show the first ${FOLDED} rows` : `Show all ${n} rows`;
    fold(table);
  });
  table.closest(".scroll").after(more);
}
