// A terminal in a job's run, on the job's page: xterm.js over the websocket of `gpucloud job exec`. Text messages say sizes
// and the end, binary ones are keys and what programs write.
import { colourOf } from "./colours.js";
import { allowStyles } from "./terminal_styles.js";
import { say } from "./words.js";

const MOST_KEYS = 16 << 10; // of one message: the server takes 64 KiB, a paste may be more
const SCROLLBACK = 5000;
const LOST = 1006; // no close frame came
// Of the buttons, for keyboards without these.
const KEYS = { escape: "\x1b", tab: "\t", interrupt: "\x03", end: "\x04", up: "\x1b[A", down: "\x1b[B" };

class Panel {
  constructor(section) {
    this.section = section;
    this.part = (name) => section.querySelector(`[data-terminal="${name}"]`);
    this.screen = this.part("screen");
    section.addEventListener("click", ({ target }) => this.act(target.closest("button")));
  }

  act(button) {
    const { terminal: act, sends } = button?.dataset ?? {};
    if (act === "again") this.open();
    if (act === "close") this.close();
    if (act === "reader") this.readOut(button.getAttribute("aria-pressed") !== "true");
    if (!sends) return;
    this.type(KEYS[sends]);
    this.terminal.focus();
  }

  async open() {
    this.section.hidden = false;
    if (this.socket) {
      this.terminal?.focus();
      return;
    }
    this.socket = true; // a second click while the files come opens no second one
    this.tell("opening");
    try {
      this.terminal ??= await this.make();
    } catch {
      this.socket = null;
      this.tell("unreached");
      return;
    }
    if (!this.socket) return; // closed meanwhile
    this.terminal.reset();
    this.terminal.options.disableStdin = false;
    this.fit.fit();
    this.connect();
    this.terminal.focus();
  }

  async make() {
    const [{ Terminal }, { FitAddon }] = await Promise.all([
      import("../vendor/xterm-6.0.0.min.js"),
      import("../vendor/xterm-addon-fit-0.11.0.min.js"),
    ]);
    allowStyles();
    const font = getComputedStyle(this.screen);
    const terminal = new Terminal({
      fontFamily: font.fontFamily, fontSize: parseFloat(font.fontSize), theme: theme(), scrollback: SCROLLBACK,
      minimumContrastRatio: 4.5, cursorBlink: !matchMedia("(prefers-reduced-motion: reduce)").matches,
      screenReaderMode: this.readOut(localStorage.getItem("screen-reader") === "true"),
    });
    this.fit = new FitAddon();
    terminal.loadAddon(this.fit);
    terminal.open(this.screen);
    terminal.textarea.setAttribute("aria-describedby", "terminal-help");
    terminal.attachCustomKeyEventHandler((event) => this.pass(event));
    terminal.onData((text) => this.type(text));
    terminal.onBinary((text) => this.send(Uint8Array.from(text, (one) => one.charCodeAt(0))));
    terminal.onResize(() => this.send(JSON.stringify(this.size())));
    document.addEventListener("theme", () => { terminal.options.theme = theme(); });
    new ResizeObserver(() => { if (!this.section.hidden) this.fit.fit(); }).observe(this.screen);
    return terminal;
  }

  connect() {
    const address = new URL(this.section.dataset.path, location.href);
    address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = this.socket = new WebSocket(address);
    socket.binaryType = "arraybuffer";
    this.end = null;
    this.heard = false;
    this.early = []; // keys that were typed while it was being opened
    socket.onopen = () => {
      socket.send(JSON.stringify({ command: [], term: "xterm-256color", ...this.size() }));
      for (const keys of this.early.splice(0)) socket.send(keys);
    };
    socket.onmessage = ({ data }) => this.take(socket, data);
    socket.onclose = (event) => this.ended(socket, event);
  }

  take(socket, data) {
    // Only what has been drawn makes room for more: a flood of output waits in the program.
    const drawn = () => { if (socket.readyState === WebSocket.OPEN) socket.send('{"shown": 1}'); };
    if (typeof data === "string") {
      const { exit, ended } = JSON.parse(data);
      this.end = exit === undefined ? ["shut", ended] : ["exited", exit];
      drawn();
      return;
    }
    if (!this.heard) this.tell("opened");
    this.heard = true;
    this.terminal.write(new Uint8Array(data), drawn);
  }

  ended(socket, { code, reason }) {
    if (this.socket !== socket) return;
    this.socket = null;
    this.terminal.options.disableStdin = true;
    const was = this.screen.contains(document.activeElement);
    if (!this.end) this.end = code === LOST ? [this.heard ? "lost" : "unreached"] : ["shut", reason];
    this.tell(...this.end);
    if (was) this.part("again").focus();
  }

  close() {
    const socket = this.socket;
    this.socket = null;
    if (socket instanceof WebSocket) socket.close(1000, "the page closed it");
    this.section.hidden = true;
    document.querySelector("[data-opens-terminal]")?.focus();
  }

  tell(...words) {
    this.part("words").textContent = say(...words);
    this.part("again").hidden = Boolean(this.socket);
  }

  type(text) {
    const bytes = new TextEncoder().encode(text);
    for (let at = 0; at < bytes.length; at += MOST_KEYS) {
      const keys = bytes.subarray(at, at + MOST_KEYS);
      if (this.socket?.readyState === WebSocket.CONNECTING) this.early.push(keys);
      else this.send(keys);
    }
  }

  send(data) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(data);
  }

  size() {
    return { columns: this.terminal.cols, rows: this.terminal.rows };
  }

  // Keys that are the page's. Tab is the shell's, so that another one has to lead out of the terminal.
  pass(event) {
    if (!event.ctrlKey || !event.shiftKey || event.altKey || event.metaKey) return true;
    const act = {
      ArrowDown: () => this.part("words").focus(),
      ArrowUp: () => this.part("close").focus(),
      KeyC: () => document.execCommand("copy"), // xterm.js answers it with the selection
    }[event.code];
    if (act && event.type === "keydown") {
      event.preventDefault();
      act();
    }
    return !act && event.code !== "KeyV"; // the browser's own paste
  }

  readOut(on) {
    this.part("reader").setAttribute("aria-pressed", on);
    localStorage.setItem("screen-reader", on);
    if (this.terminal) this.terminal.options.screenReaderMode = on;
    return on;
  }
}

function theme() {
  const [background, foreground, cursor, selection] = ["card", "ink", "focus", "used-fill"].map(colourOf);
  return { background, foreground, cursor, cursorAccent: background, selectionBackground: selection };
}

const panel = new Panel(document.getElementById("terminal"));
// Its button is in the part of the page that is fetched again and again.
document.addEventListener("click", ({ target }) => { if (target.closest("[data-opens-terminal]")) panel.open(); });
