// Memory of one device over a step, before and after: bytes in use while each instruction runs, in the order of the text.

const CHART_TOP = 26;
const CHART_HEIGHT = 200;

class MemoryChart {
  constructor(sides) {
    this.hint = "Bytes in use while each instruction runs, in the order of the text. ";
    this.end = 1;
    this.least = 1e-4;
    this.sides = sides;
    this.most = Math.max(...sides.map((side) => side.peak_bytes), 1) * 1.05;
    this.height = CHART_TOP + CHART_HEIGHT + 24;
    this.summary = sides.map((side) => `${side.title || "peak"}: ${bytesText(side.peak_bytes)} at the peak. `).join("");
    this.names = sides.map((side) => side.title || "the module");
    this.colors = sides.length > 1 ? ["before", "after"] : ["after"];
  }

  legend() {
    const item = (name, number) => element("li", {},
      element("span", {class: "swatch line", style: `background: var(--${this.colors[number]})`}), name);
    return element("ul", {class: "legend"}, ...this.names.map(item));
  }

  axisText(value, step) {
    const digits = Math.max(0, -Math.floor(Math.log10(step * 100) + 1e-9));
    return (value * 100).toFixed(digits) + " %";
  }

  y(bytes) { return CHART_TOP + CHART_HEIGHT * (1 - bytes / this.most); }

  share(side, point) { return point[0] / Math.max(side.n_moments - 1, 1); }

  draw(chart, context) {
    const unit = 2 ** (10 * Math.floor(Math.log2(this.most) / 10));
    context.font = "11px system-ui, sans-serif";
    for (const [value] of ticks(0, this.most / unit, 5)) {
      const y = this.y(value * unit);
      context.fillStyle = color("grid");
      context.fillRect(0, Math.round(y), chart.width, 1);
    }
    this.sides.forEach((side, number) => this.curve(chart, context, side, color(this.colors[number]), number));
    context.font = "11px system-ui, sans-serif";
    for (const [value] of ticks(0, this.most / unit, 5).slice(1)) {
      const text = bytesText(value * unit);
      const y = this.y(value * unit) - 8;
      context.fillStyle = color("panel");
      context.fillRect(0, y - 7, context.measureText(text).width + 4, 14);
      context.fillStyle = color("muted");
      context.fillText(text, 0, y);
    }
  }

  curve(chart, context, side, paint, number) {
    const {points} = side;
    if (points.length === 0) return;
    context.beginPath();
    points.forEach((point, i) => {
      const [x, y] = [chart.x(this.share(side, point)), this.y(point[1])];
      if (i === 0) context.moveTo(x, y);
      else {
        context.lineTo(x, this.y(points[i - 1][1]));
        context.lineTo(x, y);
      }
    });
    context.strokeStyle = paint;
    context.lineWidth = 1.75;
    context.lineJoin = "round";
    context.stroke();
    const peak = points.find((point) => point[1] === side.peak_bytes);
    if (!peak) return;
    const [x, y] = [chart.x(this.share(side, peak)), this.y(peak[1])];
    if (x < -4 || x > chart.width + 4) return;
    context.fillStyle = paint;
    context.beginPath();
    context.arc(x, y, 4, 0, 2 * Math.PI);
    context.fill();
    context.font = "600 12px system-ui, sans-serif";
    const text = `${side.title ? side.title + ": " : ""}${bytesText(side.peak_bytes)}`;
    const width = context.measureText(text).width;
    // Two labels stand one over the other where both peaks are near.
    const at = Math.min(Math.max(x - width / 2, 2), chart.width - width - 2);
    const left = number === 0 && this.sides.length > 1 ? Math.min(at, chart.width - 2 * width - 40) : at;
    const clear = number === 0 || !this.taken || left > this.taken[1] + 12 || left + width < this.taken[0] - 12;
    const start = clear ? left : Math.min(this.taken[1] + 12, chart.width - width);
    this.taken = [start, start + width];
    context.fillText(text, start, 8);
  }

  at(chart, x) {
    const value = chart.value(x);
    const lines = [];
    this.sides.forEach((side, number) => {
      const near = side.points.findLast((point) => this.share(side, point) <= value) || side.points[0];
      if (near) lines.push(`${this.names[number]}: ${bytesText(near[1])} at ${near[2] ? "%" + near[2] : "the start"}`);
    });
    return lines;
  }
}
