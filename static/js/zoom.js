// Selecting a span of a chart: by dragging over it, or with the keyboard (arrows move the cursor, with Shift they select,
// Enter zooms, Escape goes back). All charts of the page show the span; the page asks for its points.
import { say } from "./words.js";

const LEAST_PIXELS = 6; // less is a click
const LEAST_SECONDS = 5; // the server's own bound: samples come once a second
const STRIDES = 60; // presses of an arrow from one end to the other

export class Zoom {
  constructor(charts) {
    this.charts = charts;
    this.span = null;
    document.addEventListener("click", ({ target }) => { if (target.closest("[data-zoom-reset]")) this.set(null); });
  }

  // What is added to the address of the series.
  get query() {
    return this.span ? `&from=${this.span[0].toFixed(3)}&to=${this.span[1].toFixed(3)}` : "";
  }

  set(span) {
    if (span && span[1] - span[0] < LEAST_SECONDS) return;
    if (String(span) === String(this.span)) return; // charts are synchronised: each of them tells the same
    this.span = span;
    for (const button of document.querySelectorAll("[data-zoom-reset]")) button.hidden = !span;
    const announcer = document.getElementById("announcer");
    if (announcer) announcer.textContent = span ? say("zoomed", ...this.charts.stamps(span)) : say("unzoomed");
    this.charts.paint();
    document.dispatchEvent(new CustomEvent("zoom"));
  }

  // Heads that name the range name the selected span instead; those that are empty are filled.
  tell() {
    for (const head of document.querySelectorAll("[data-span]")) {
      head.dataset.range ??= head.textContent;
      const text = this.span ? this.charts.stamps(this.span).join(" – ") : head.dataset.range;
      if (head.textContent !== text) head.textContent = text;
    }
  }

  // A drag has ended.
  selected(plot) {
    const { left, width } = plot.select;
    if (width < LEAST_PIXELS) return;
    const span = [left, left + width].map((at) => plot.posToVal(at, "x"));
    clear(plot);
    this.set(span);
  }

  key(event, plot) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) this.move(plot, by, event.shiftKey);
    else if (event.key === "Enter" && plot.from != null) this.set([plot.from, plot.at].sort((one, other) => one - other));
    else if (event.key === "Escape") plot.from == null ? this.set(null) : null;
    else return;
    event.preventDefault();
    if (!by) forget(plot);
  }

  move(plot, by, selects) {
    const { min, max } = plot.scales.x;
    const before = plot.at == null || plot.at < min || plot.at > max ? (by > 0 ? min : max) : plot.at;
    if (!selects) forget(plot);
    else plot.from ??= before;
    plot.at = Math.min(max, Math.max(min, before + (by * (max - min)) / STRIDES));
    const left = plot.valToPos(plot.at, "x");
    plot.setCursor({ left, top: 1 });
    if (plot.from == null) return;
    const from = plot.valToPos(plot.from, "x");
    plot.setSelect({ left: Math.min(from, left), width: Math.abs(left - from), top: 0, height: plot.over.clientHeight }, false);
  }
}

function forget(plot) {
  plot.from = null;
  clear(plot);
}

function clear(plot) {
  plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
}
