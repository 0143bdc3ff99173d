// The timeline: what runs on the streams of one device, before and after, on one axis.

const LANE = 34;
const LANE_TITLE = 20;
const SIDE_TITLE = 28;
/** The kind of a loop's rounds after the first. */
const ROUNDS = 8;

class Timeline {
  constructor(sides, kinds) {
    this.kinds = kinds;
    this.end = Math.max(...sides.map((side) => side.critical_path_s * 1e6), 1e-3);
    this.least = this.end / 1e6;
    this.rows = [];
    this.titles = [];
    this.summary = "";
    this.chosen = null;
    let y = 0;
    for (const side of sides) {
      const words = `kernels ${timeText(side.compute_s)}, collectives ${timeText(side.communication_s)}`;
      const title = (side.title ? side.title + ": " : "") + timeText(side.critical_path_s);
      this.titles.push({y: y + SIDE_TITLE / 2, title, words});
      this.summary += `${title}, ${words}. `;
      y += SIDE_TITLE;
      const everywhere = side.lanes.find((lane) => lane.name === "all").spans;
      for (const {name, spans} of side.lanes.filter((lane) => lane.name !== "all")) {
        const all = spans.concat(everywhere).sort((a, b) => a[0] - b[0]);
        this.rows.push({name, spans: all, y: y + LANE_TITLE, title: y + LANE_TITLE / 2, end: side.critical_path_s * 1e6});
        y += LANE_TITLE + LANE;
      }
      y += 12;
    }
    this.height = y + 24;
    this.used = new Set(this.rows.flatMap((row) => row.spans.map((span) => span[2])));
  }

  legend() {
    const entries = this.kinds.map(([word, name], number) => [word, name, number]);
    const shown = entries.filter(([, , number]) => this.used.has(number));
    const item = ([word, name]) => element("li", {},
      element("span", {class: "swatch", style: `background: var(--${name})`}), word);
    return element("ul", {class: "legend"}, ...shown.map(item));
  }

  axisText(value, step) {
    const [unit, scale] = value + step < 1e4 || this.end < 1e4 ? ["µs", 1] : ["ms", 1e3];
    const digits = Math.max(0, -Math.floor(Math.log10(step / scale) + 1e-9));
    return (value / scale).toFixed(digits) + " " + unit;
  }

  /** The first span of a row that ends after `value`. */
  first(row, value) {
    let [low, high] = [0, row.spans.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (row.spans[middle][0] + row.spans[middle][1] < value) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  draw(chart, context) {
    for (const {y, title, words} of this.titles) {
      context.font = "600 13px system-ui, sans-serif";
      context.fillStyle = color("text");
      context.fillText(title, 0, y);
      const x = context.measureText(title).width + 10;
      context.font = "12px system-ui, sans-serif";
      context.fillStyle = color("muted");
      context.fillText(fitted(context, words, chart.width - x), x, y);
    }
    const paints = this.kinds.map(([, name]) => [color(name), color(name + "-text") || color("bar-text")]);
    const [idle, muted, ring] = [color("idle"), color("muted"), color("text")];
    for (const row of this.rows) {
      context.fillStyle = muted;
      context.font = "11px system-ui, sans-serif";
      context.fillText(row.name, 0, row.title);
      const [left, right] = [Math.max(chart.x(0), 0), Math.min(chart.x(row.end), chart.width)];
      if (right > left) {
        context.fillStyle = idle;
        context.fillRect(left, row.y, right - left, LANE);
      }
      this.drawnTo = -2;
      for (let i = this.first(row, chart.from); i < row.spans.length && row.spans[i][0] <= chart.to; i++) {
        this.bar(chart, context, row, row.spans[i], paints);
      }
    }
    const {row, span} = this.chosen || {};
    if (span) {
      context.strokeStyle = ring;
      context.lineWidth = 2;
      const [x, width] = [chart.x(span[0]), span[1] / (chart.to - chart.from) * chart.width];
      context.strokeRect(x - 1, row.y - 1, Math.max(width, 1) + 2, LANE + 2);
    }
  }

  bar(chart, context, row, [start, length, kind, name, , , tasks, busy], paints) {
    const left = Math.max(chart.x(start), -1);
    const right = Math.min(chart.x(start + length), chart.width + 1);
    const width = right - left;
    context.fillStyle = paints[kind][0];
    // Several tasks that are idle for a part of their time are paler.
    context.globalAlpha = tasks > 1 && length > 0 ? Math.min(Math.max(busy / length, 0.25), 1) : 1;
    // A gap between neighbours, but not where it would be all that is seen.
    // Alone, a narrow one is made wide enough to be seen; among others it has its share of the pixel.
    const least = left - this.drawnTo > 1 ? 0.5 : 0;
    context.fillRect(left, row.y, width > 3 ? width - 1 : Math.max(width, least), LANE);
    this.drawnTo = right;
    context.globalAlpha = 1;
    if (width < 30) return;
    context.fillStyle = paints[kind][1];
    if (tasks > 1 && busy < length * 0.9) context.fillStyle = color("text");
    const text = fitted(context, tasks > 1 ? `${tasks} tasks` : kind === ROUNDS ? `more rounds of ${name}` : name, width - 10);
    if (text) context.fillText(text, left + 5, row.y + LANE / 2 + 1);
  }

  words(row, [start, length, kind, name, instructions = 1, runs = 1, tasks = 1, busy]) {
    const lines = [tasks > 1 ? `${tasks} tasks, the longest is %${name}` : `%${name}`];
    const what = this.kinds[kind][0];
    lines.push(instructions > 1 && tasks === 1 && kind < 2 ? `${what} of ${instructions} instructions` : what);
    lines.push(`${timeText(length / 1e6)} from ${timeText(start / 1e6)} on`);
    if (tasks > 1) lines.push(`busy for ${timeText(busy / 1e6)}`);
    if (runs !== 1) lines.push(`runs ${Number.isInteger(runs) ? runs : runs.toFixed(1)} times; the first is drawn`);
    return lines;
  }

  at(chart, x, y) {
    const row = this.rows.find((row) => y >= row.y && y <= row.y + LANE);
    if (!row) return null;
    const slack = (chart.to - chart.from) / chart.width;
    const value = chart.value(x);
    const span = row.spans[this.first(row, value - slack)];
    return span && span[0] <= value + slack ? this.words(row, span) : null;
  }

  next(chart, by) {
    const {chosen} = this;
    let [row, number] = chosen ? [this.rows.indexOf(chosen.row), chosen.number + by] : [0, this.first(this.rows[0], chart.from)];
    while (this.rows[row] && !this.rows[row].spans[number]) {
      row += by;
      number = by > 0 || !this.rows[row] ? 0 : this.rows[row].spans.length - 1;
    }
    if (!this.rows[row]) return null;
    const span = this.rows[row].spans[number];
    this.chosen = {row: this.rows[row], number, span};
    return {start: span[0], words: this.words(this.rows[row], span), y: this.rows[row].y + LANE};
  }
}
