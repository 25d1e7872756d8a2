// Keeping a page true. A websocket brings telemetry (for charts) and thin notices that something changed; what changed
// is fetched again through the ordinary view. Without a socket the page asks every few seconds, and says so. A hidden
// tab does nothing. A gap in a node's sequence numbers, or a new connection, fetches the series again.
import { say } from "./words.js";

const POLL_SECONDS = 3;
const QUIET_SECONDS = 5; // agents report once a second
const LONGEST_BACKOFF_SECONDS = 30;
const LEAST_BETWEEN_REFRESHES_MS = 700; // a burst of notices is one refresh
const MOST_BETWEEN_REFRESHES_MS = 5000; // whatever they cost
const REST = 24; // times as long as a refresh keeps the browser busy, until the next: pages stay open all day

export class Watch {
  constructor({ watch, series, refreshSeconds, seriesSeconds }) {
    Object.assign(this, { path: watch, series, refreshSeconds: Number(refreshSeconds) });
    this.seriesSeconds = Number(seriesSeconds); // of charts that no frame moves; else NaN, which nothing reaches
    this.refetched = performance.now();
    this.charts = null;
    this.attempt = 0;
    this.heard = performance.now(); // when this page last got anything from the server
    this.lastSeq = new Map();
    this.refreshed = 0;
    this.busy = 0; // milliseconds that a refresh takes, from its answer until it is drawn
  }

  show(charts) {
    this.charts = charts;
  }

  start() {
    setInterval(() => this.tick(), 1000);
    document.addEventListener("zoom", () => this.refetch());
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.resume()));
    const body = document.body;
    body.addEventListener("htmx:beforeSwap", (event) => this.beforeSwap(event));
    body.addEventListener("htmx:afterSwap", () => this.afterSwap());
    // What was made before the last notice was sent is too old for this page.
    body.addEventListener("htmx:configRequest", ({ detail }) => { if (this.told) detail.headers["X-Not-Before"] = this.told; });
    body.addEventListener("htmx:afterOnLoad", () => { this.heard = performance.now(); });
    if (!document.hidden) this.connect();
  }

  connect() {
    if (this.socket || document.hidden) return;
    const address = new URL(this.path, location.href);
    address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = this.socket = new WebSocket(address);
    socket.onopen = () => {
      // What happened between the page's making and this moment was told to nobody.
      this.attempt > 0 ? this.catchUp() : this.refresh();
      this.attempt = 0;
      this.heard = performance.now();
      this.paint();
    };
    socket.onmessage = (event) => this.take(JSON.parse(event.data));
    socket.onclose = () => {
      if (this.socket !== socket) return;
      this.socket = null;
      this.attempt += 1;
      const seconds = Math.min(LONGEST_BACKOFF_SECONDS, 2 ** (this.attempt - 1)) * (0.5 + Math.random());
      this.retry = setTimeout(() => this.connect(), 1000 * seconds);
      this.paint();
    };
  }

  pause() {
    clearTimeout(this.retry);
    const socket = this.socket;
    this.socket = null;
    if (!socket) return;
    // One that is not open yet would be a complaint of the browser's: who turns a page early has done nothing wrong.
    if (socket.readyState === WebSocket.CONNECTING) socket.onopen = () => socket.close();
    else socket.close();
  }

  resume() {
    this.connect();
    this.catchUp();
  }

  catchUp() {
    this.lastSeq.clear();
    this.refetch();
    this.refresh();
  }

  take(message) {
    this.heard = performance.now();
    if (message.type === "changed") {
      this.told = message.at;
      this.refresh();
      this.refetchSoon();
    } else if (message.type === "usage") {
      const last = this.lastSeq.get(message.node);
      if (last !== undefined && message.seq !== last + 1) this.refetch();
      this.lastSeq.set(message.node, message.seq);
      this.charts?.take(message);
    }
    this.paint();
  }

  get connected() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  tick() {
    if (document.hidden) return;
    const every = this.connected ? this.refreshSeconds : POLL_SECONDS;
    if (performance.now() - this.refreshed >= 1000 * every) {
      this.refresh();
      if (!this.connected) this.refetch();
    }
    if (performance.now() - this.refetched >= 1000 * this.seriesSeconds) this.refetch();
    this.charts?.tick();
    this.paint();
  }

  // Fragments, through the ordinary view. What is being typed is never overwritten.
  refresh() {
    const between = Math.min(MOST_BETWEEN_REFRESHES_MS, Math.max(LEAST_BETWEEN_REFRESHES_MS, REST * this.busy));
    const wait = this.refreshed + between - performance.now();
    if (wait > 0) {
      this.later ??= setTimeout(() => { this.later = null; this.refresh(); }, wait);
      return;
    }
    this.refreshed = performance.now();
    if (document.querySelector("dialog[open], :popover-open, [data-moving]")) return; // what is being read, confirmed or dragged stays; the next tick asks
    window.htmx.trigger("#living", "refresh");
    const form = document.querySelector("#resize form");
    if (form && !inUse(form)) window.htmx.trigger("#resize", "refresh");
  }

  refetchSoon() {
    if (this.seriesSeconds) return; // they are of minutes: news of this moment is not in them
    clearTimeout(this.soon);
    this.soon = setTimeout(() => this.refetch(), 300);
  }

  async refetch() {
    if (!this.series || !this.charts) return;
    this.refetched = performance.now();
    // Only a series of a range knows spans.
    const query = this.series.includes("range=") ? this.charts.zoom.query : "";
    try {
      const answer = await fetch(this.series + query, { headers: { Accept: "application/json" } });
      // The session ended: sign in, and come back here, with what was typed.
      if (answer.status === 401) location.assign(answer.headers.get("HX-Redirect") ?? location.href);
      if (!answer.ok) return;
      const data = await answer.json();
      if (query && query !== this.charts.zoom.query) return; // zoomed again meanwhile
      this.charts.replace(data);
      this.heard = performance.now();
    } catch {
      // Away for a moment: the page says how old it is, and the next tick asks again.
    }
  }

  beforeSwap(event) {
    this.swapping = performance.now();
    // Opened, taken hold of, or begun to be filled in, while its part was being asked for: it stays, and the next tick asks again.
    const form = event.target.id === "resize" && event.detail.requestConfig.verb === "get" && event.target.querySelector("form");
    if ((event.target.id === "living" && event.target.querySelector("dialog[open], :popover-open, [data-moving]")) || (form && inUse(form))) {
      event.detail.shouldSwap = false;
      return;
    }
    const active = document.activeElement;
    this.focused = event.target.contains(active) ? { at: alike(event.target, active).indexOf(active), as: active, in: event.target } : null;
    this.scrolled = event.target.querySelector(".log")?.scrollTop;
    this.states = announced();
  }

  afterSwap() {
    if (this.focused && document.activeElement === document.body) {
      const { in: part, as, at } = this.focused;
      (as.isConnected ? as : alike(part, as)[at])?.focus({ preventScroll: true }); // some are kept as they are: hx-preserve
    }
    if (this.scrolled) document.querySelector(".log")?.scrollTo(0, this.scrolled); // read further up
    announced().forEach((state, name) => {
      if (this.states?.get(name) !== state) document.getElementById("announcer").textContent = `${name}: ${state}`;
    });
    if (this.charts?.adopt()) this.refetch();
    this.paint();
    // A task that a frame asks for comes after that frame's styles and layout; a hidden tab has no frames for hours.
    requestAnimationFrame(() => setTimeout(() => { this.busy = (this.busy + Math.min(1000, performance.now() - this.swapping)) / 2; }));
  }

  paint() {
    const age = Math.floor((performance.now() - this.heard) / 1000);
    const limit = QUIET_SECONDS + (this.connected ? this.refreshSeconds : POLL_SECONDS);
    const mode = age > limit ? "stale" : this.connected ? "live" : "polling";
    const text = { stale: say("stale", age), live: say("live"), polling: say("polling", POLL_SECONDS) }[mode];
    const element = document.getElementById("live");
    if (!element) return; // what it shows has ended: nothing of it changes any more
    element.dataset.mode = mode;
    const word = document.getElementById("live-word");
    if (word.textContent !== text) word.textContent = text;
  }
}

// Those that do the same: what only stands in the same place may be another row's, and Enter would answer that one.
function alike(part, control) {
  return [...part.querySelectorAll("a, button")].filter((one) => does(one) === does(control));
}

function does(control) {
  if (control.href) return control.href;
  const { name, value, dataset, ariaLabel, textContent, form } = control;
  return [control.getAttribute("formaction") ?? form?.getAttribute("action"), name, value, dataset.opens, ariaLabel ?? textContent].join(" ");
}

// A button keeps the focus after its work: it does not mean that somebody types.
function inUse(form) {
  const active = document.activeElement;
  return (form.contains(active) && !active.matches("button")) || dirty(form) || form.querySelector("[role=alert]") !== null; // or refused
}

function dirty(form) {
  return [...form.elements].some((field) => field.matches("input:not([type=hidden])") && field.value !== field.defaultValue);
}

function announced() {
  const words = (element) => element.querySelector("[data-state]").textContent;
  return new Map([...document.querySelectorAll("[data-announce]")].map((item) => [item.dataset.announce, words(item)]));
}
