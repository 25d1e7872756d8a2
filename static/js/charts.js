// Live charts: series by key (an assignment, or a GPU), a window that slides, marks where limits were moved.
// Every chart has a legend with its present numbers and a table with the same data.
import { KINDS } from "./chart_kinds.js";
import { colourOf } from "./colours.js";
import { ago, duration, say } from "./words.js";
import { Zoom } from "./zoom.js";

const GAP_SECONDS = 5; // a longer silence is drawn as a gap, not as a line
const TABLE_ROWS = 60;
const A_DAY = 86400;
const [LEFT, RIGHT] = [48, 12]; // pixels beside the plot: labels of the values, half a label of the last time

const COLLECTING_SECONDS = 60; // from a claim's placement until its first points can be expected

// The reader's zone, as in the rest of the page; not the browser's.
const timeZone = document.getElementById("words").dataset.zone;
const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString([], { hourCycle: "h23", timeZone });
const day = (seconds) => new Date(1000 * seconds).toLocaleDateString([], { month: "short", day: "numeric", timeZone });
const pen = document.createElement("canvas").getContext("2d"); // measures labels
const MIB = 1048576;
const mib = (bytes) => (bytes == null ? null : bytes / MIB);
const number = (value, unit, digits = 0) => (value == null ? "–" : `${value.toFixed(digits)} ${unit}`.trim());

export class Charts {
  constructor(data) {
    this.charts = [];
    this.zoom = new Zoom(this);
    this.adopt();
    this.replace(data);
    document.addEventListener("theme", () => this.charts.forEach((chart) => chart.build()));
  }

  // Draw the figures that have come, forget those that have gone; true where any came.
  adopt() {
    const known = new Set(this.charts.map((chart) => chart.figure));
    const come = [...document.querySelectorAll("[data-chart]")].filter((figure) => !known.has(figure));
    this.charts.filter((chart) => !chart.figure.isConnected).forEach((chart) => chart.end());
    this.charts = [...this.charts.filter((chart) => chart.figure.isConnected), ...come.map((figure) => new Chart(figure, this.zoom))];
    return come.length > 0;
  }

  replace(data) {
    this.offset = data.now - performance.now() / 1000; // the server's clock, by this page's
    this.window = data.window_seconds;
    this.gap = Math.max(GAP_SECONDS, 2.5 * (data.step_seconds ?? 0));
    this.live = data.live;
    this.marks = data.marks;
    this.bands = data.bands ?? []; // spans in which a claim was suspended
    this.points = new Map(data.series.map((series) => [series.key, rows(series)]));
    this.paint();
  }

  take(frame) {
    if (!this.live || this.zoom.span) return; // a long range comes again by itself, a selected span stays
    const lent = lentBy(frame.assignments ?? []);
    const of = (item) => ({
      at: frame.at,
      core_percent: item.core_percent,
      core_limit_percent: item.core_limit_percent,
      throttled_percent: item.throttled_percent,
      memory_mib: item.memory_bytes / MIB,
      memory_limit_mib: mib(item.memory_limit_bytes),
      borrowed_mib: lent[item.uuid] ?? mib(item.borrowed?.borrowed_bytes),
      memory_out_mib: mib(item.borrowed?.out_bytes),
      moved_mib_per_second: mib(item.borrowed?.moved_bytes_per_second),
      stood_percent: item.borrowed?.stood_percent ?? null,
    });
    for (const item of frame.assignments ?? []) this.add(item.uid, of(item));
    for (const item of frame.gpus ?? []) {
      this.add(item.uuid, of(item));
      if (item.power_watts != null) this.add(`${item.uuid}/power`, { at: frame.at, power_watts: item.power_watts });
    }
    this.paint();
  }

  add(key, point) {
    const points = this.points.get(key);
    if (!points) return;
    // Agents do not know the guarantee; a change of it comes with the next series.
    if (points.length) point.core_request_percent ??= points.at(-1).core_request_percent;
    if (points.length === 0 || point.at > points.at(-1).at) points.push(point); // older ones come with the next series
    while (points.length && points[0].at < point.at - this.window) points.shift();
  }

  // Time has moved on: worth a drawing once that is a pixel or two.
  tick() {
    if (performance.now() / 1000 + this.offset - this.now > this.window / 600) this.paint();
  }

  // The ends of a span: clock times, with their days unless both are today.
  stamps(span) {
    const days = new Set([...span, this.now].map(day));
    return span.map((at) => (days.size > 1 ? `${day(at)} ${clock(at)}` : clock(at)));
  }

  paint() {
    this.now = performance.now() / 1000 + this.offset;
    for (const chart of this.charts) chart.draw(this.points.get(chart.key) ?? [], this);
    this.zoom.tell();
  }
}

// What the assignments borrow of each GPU, in MiB; GPUs of which nothing may be borrowed are left out.
function lentBy(assignments) {
  const lent = {};
  for (const { gpu, borrowed } of assignments) if (borrowed) lent[gpu] = (lent[gpu] ?? 0) + mib(borrowed.borrowed_bytes);
  return lent;
}

function rows(series) {
  const { times, key, ...columns } = series;
  return times.map((at, index) => Object.fromEntries([["at", at], ...Object.entries(columns).map(([name, values]) => [name, values[index]])]));
}

class Chart {
  constructor(figure, zoom) {
    const { chart, key, request, memory, unit, since } = figure.dataset;
    const kind = { ...KINDS[chart], ...(unit && { unit }) };
    Object.assign(this, { figure, key, kind, zoom, memory: Number(memory), request: Number(request) || null, since: Number(since) || 0 });
    this.plot = figure.querySelector(".plot");
    this.note = element("p", "plot-note muted");
    this.plot.append(this.note);
    if (!kind.endless) this.listen();
    Object.assign(this, { marks: [], bands: [], points: [], shown: [], gap: GAP_SECONDS, stamp: clock });
    this.legend();
    this.build();
    this.observer = new ResizeObserver(() => this.chart.setSize(this.size()));
    this.observer.observe(this.plot);
    this.details = figure.querySelector("details");
    this.details.addEventListener("toggle", () => this.table());
  }

  listen() {
    this.plot.tabIndex = 0;
    this.plot.addEventListener("keydown", (event) => this.zoom.key(event, this.chart));
    this.plot.addEventListener("dblclick", () => this.zoom.set(null));
  }

  end() {
    this.observer.disconnect();
    this.chart.destroy();
  }

  size() {
    return { width: Math.max(160, this.plot.clientWidth), height: this.plot.clientHeight };
  }

  legend() {
    const items = this.kind.lines.map((line) => {
      const item = element("span", "legend-item");
      const value = element("b");
      if (!line.figure) item.append(element("i", `legend-line colour-${line.colour} ${line.css ?? ""}`));
      item.append(say(line.label), value);
      return { item, value };
    });
    this.items = items;
    // Shown while there is such a span; its value is their sum.
    this.still = element("span", "legend-item");
    this.still.append(element("i", "legend-band"), say("suspended"), element("b"));
    this.figure.querySelector("[data-legend]").replaceChildren(...items.map(({ item }) => item), this.still);
  }

  build() {
    this.chart?.destroy();
    const [quiet, line] = [colourOf("quiet"), colourOf("line")];
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { stroke: quiet, font, grid: { stroke: line, width: 1 }, ticks: { show: false } };
    this.chart = new window.uPlot({
      ...this.size(),
      padding: [20, RIGHT, 0, 0],
      legend: { show: false },
      // What is under the cursor in one chart is told of that moment in all.
      tzDate: (at) => window.uPlot.tzDate(new Date(1000 * at), timeZone),
      cursor: { sync: { key: "page" }, y: false, drag: { x: !this.kind.endless, y: false, setScale: false }, points: { size: 7 } },
      scales: { x: { time: true, range: () => this.range ?? [0, 1] }, y: { range: () => [0, this.kind.top(this.points)] } },
      axes: [
        { ...axis, size: 28, gap: 8, space: 80, values: (plot, splits) => this.labels(plot, splits, font) },
        { ...axis, size: LEFT, space: 26, values: (_, splits) => splits.map((value) => String(Number(value.toFixed(2)))) },
      ],
      series: [{}, ...this.kind.lines.map((line) => this.series(line))],
      bands: this.kind.lines.flatMap(({ band }, index) => (band ? [{ series: [index + 1, index], fill: colourOf(band) }] : [])),
      hooks: { drawClear: [(plot) => this.drawBands(plot)], draw: [(plot) => this.drawMarks(plot)], setCursor: [() => this.tell()], setSelect: [(plot) => this.zoom.selected(plot)] },
    }, this.columns(), this.plot);
  }

  // The label of each time: a day once, and none that would be cut off at the right.
  labels(plot, splits, font) {
    const texts = splits.map((at) => this.stamp(at).replace(/:00$/, ""));
    return texts.map((text, index) => (text !== texts[index - 1] && fits(plot, splits[index], text, font) ? text : ""));
  }

  series(line) {
    return {
      label: say(line.label), show: !line.figure, stroke: line.colour && colourOf(line.colour), width: line.width ?? 2, dash: line.dash,
      points: { show: () => this.points.length === 1, size: 6 }, // a long range of a young claim
      fill: line.fill && colourOf(line.fill), paths: pathsOf(line),
    };
  }

  columns() {
    const shown = [];
    this.points.forEach((point, index) => {
      const before = this.points[index - 1];
      if (before && !this.kind.endless && point.at - before.at > this.gap) shown.push({ at: before.at + 1 });
      shown.push(point);
    });
    this.shown = shown;
    return [shown.map((p) => p.at), ...this.kind.lines.map((line) => shown.map((p) => line.of(p, this) ?? null))];
  }

  draw(points, { now, window, marks, bands, gap, live, zoom: { span } }) {
    this.points = points;
    this.range = span ?? [now - window, now];
    const [from, to] = this.range;
    this.marks = marks.filter((mark) => mark.at > from && mark.at <= to);
    const cut = bands.map((band) => [Math.max(band.from, from), Math.min(band.to ?? now, to)]);
    this.bands = cut.filter(([begin, end]) => end > begin);
    this.still.hidden = !this.bands.length;
    this.still.lastChild.textContent = duration(this.bands.reduce((sum, [begin, end]) => sum + end - begin, 0));
    this.gap = gap;
    this.stamp = to - from > 2 * A_DAY ? day : clock;
    this.age = points.length > (live ? 0 : 1) && !this.kind.endless && !span ? now - points.at(-1).at : 0;
    this.tellEmpty(now);
    this.chart.setData(this.columns());
    this.tell();
    if (this.details.open) this.table();
  }

  // Words in the place of an empty chart.
  tellEmpty(now) {
    // The fleet has measurements at any time, but in an installation's first minutes.
    const young = this.key === "fleet" || now - this.since < COLLECTING_SECONDS;
    const text = this.points.length > (young ? 1 : 0) || this.kind.endless ? "" : say(young ? "collecting" : "unmeasured");
    if (this.note.textContent !== text) this.note.textContent = text;
    this.note.hidden = !text;
  }

  // The numbers under the cursor, else the newest.
  tell() {
    const hovered = this.chart?.cursor.idx;
    const columns = this.chart?.data ?? [];
    const old = hovered == null && this.age > this.gap ? ` (${ago(this.age)})` : "";
    this.kind.lines.forEach((line, index) => {
      const column = columns[index + 1] ?? [];
      const last = this.kind.newest ? column.findLastIndex((one) => one != null) : column.length - 1;
      const point = this.shown[hovered ?? last];
      const { item, value } = this.items[index];
      value.textContent = number(point && this.told(line, point), line.unit ?? this.kind.unit, line.digits ?? this.kind.digits) + old;
      item.hidden = line.rare === true && column.every((one) => one == null);
    });
  }

  told(line, point) {
    return (line.tells ?? line.of)(point, this);
  }

  drawBands(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.fillStyle = colourOf("suspended-fill");
    for (const [begin, end] of this.bands) {
      const [left, right] = [begin, end].map((at) => plot.valToPos(at, "x", true));
      ctx.fillRect(left, bbox.top, Math.max(right - left, devicePixelRatio), bbox.height);
    }
    ctx.restore();
  }

  drawMarks(plot) {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colourOf("ink");
    ctx.font = `${11 * ratio}px ${getComputedStyle(document.body).fontFamily}`;
    for (const mark of this.marks) {
      const x = plot.valToPos(mark.at, "x", true);
      ctx.globalAlpha = 0.55;
      ctx.setLineDash([2 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.globalAlpha = 1;
      ctx.textAlign = x > bbox.left + bbox.width * 0.7 ? "right" : "left";
      if (mark === this.marks.at(-1)) ctx.fillText(mark.label, x + (ctx.textAlign === "right" ? -5 : 5) * ratio, bbox.top - 7 * ratio);
    }
    ctx.restore();
  }

  moment(at) {
    return this.stamp === day ? `${day(at)} ${clock(at)}` : clock(at);
  }

  table() {
    if (!this.details.open) return;
    const [head, body] = ["thead", "tbody"].map((name) => this.details.querySelector(name));
    const lines = this.kind.lines.filter((line) => !line.rare || this.points.some((p) => line.of(p, this) != null));
    head.replaceChildren(row("th", [say("time"), ...lines.map((line) => [say(line.label), line.unit ?? this.kind.unit].filter(Boolean).join(", "))]));
    const newest = this.points.slice(-TABLE_ROWS).reverse();
    body.replaceChildren(...newest.map((p) => row("td", [this.moment(p.at), ...lines.map((line) => this.told(line, p)?.toFixed(2) ?? "–")])));
  }
}

// True where the label of a time ends within the canvas.
function fits(plot, at, label, font) {
  const { min, max } = plot.scales.x;
  const middle = LEFT + ((at - min) / (max - min)) * (plot.width - LEFT - RIGHT);
  pen.font = font;
  return middle + pen.measureText(label).width / 2 <= plot.width;
}

function pathsOf(line) {
  const { stepped, bars } = window.uPlot.paths;
  if (line.bars) return bars({ align: 1, size: [0.9, Infinity] });
  return line.stepped ? stepped({ align: 1 }) : undefined;
}

function element(name, className = "") {
  return Object.assign(document.createElement(name), { className });
}

function row(kind, texts) {
  const line = element("tr");
  line.append(...texts.map((text) => Object.assign(element(kind), { textContent: text, scope: kind === "th" ? "col" : "" })));
  return line;
}
