// What every page does: ages that stay true, dialogs, copying, filters, and watching what changes.
import { Watch } from "./live.js";
import { ago, say } from "./words.js";

const TWICE_MS = 5000;

// The server said how old it was when it was written; from then on this page's own clock counts.
function tellAges() {
  for (const element of document.querySelectorAll("time[data-ago]")) {
    element.since ??= performance.now() - 1000 * Number(element.dataset.ago);
    const text = ago((performance.now() - element.since) / 1000);
    if (element.textContent !== text) element.textContent = text;
  }
}

function onClick(event) {
  const button = event.target.closest("button");
  if (!button) return;
  const { opens, closes, copies, copiesAddress } = button.dataset;
  if (opens) document.getElementById(opens).showModal();
  if (closes !== undefined) button.closest("dialog").close();
  if (copies) copy(button, document.getElementById(copies).textContent);
  if (copiesAddress !== undefined) copy(button, location.href);
}

async function copy(button, text) {
  const label = button.querySelector("span");
  try {
    await navigator.clipboard.writeText(text);
    label.textContent = say("copied");
  } catch {
    label.textContent = say("select");
  }
  setTimeout(() => { label.textContent = say("copy"); }, 2000);
}

// A slider and the number that it stands for move each other; only the number is sent.
function onInput(event) {
  const { id, dataset } = event.target;
  const other = dataset.slides ? document.getElementById(dataset.slides) : document.querySelector(`[data-slides="${CSS.escape(id)}"]`);
  if (other) other.value = event.target.value;
}

// An amount and its box "Unlimited" exclude each other.
function keepOneAmount({ target }) {
  const amount = target.closest(".amount");
  const box = amount?.querySelector("[type=checkbox]");
  if (!box) return;
  if (target === box && box.checked) amount.querySelector("[type=text]").value = "";
  else if (target !== box) box.checked = !target.value && box.checked;
}

// On a phone a table's rows are cards (tables.css), and each cell says what its column's head says.
function labelCells() {
  for (const table of document.querySelectorAll("table.rows:not(.labelled)")) {
    const words = [...table.tHead.rows[0].cells].map(said);
    for (const row of [...table.rows].slice(1)) {
      [...row.cells].forEach((cell, at) => { if (cell.tagName === "TD" && words[at]) cell.dataset.label = words[at]; });
    }
    table.classList.add("labelled");
  }
}

// What the eye reads of a head: not the explanation behind its word, nor what is there for screen readers alone.
function said(head) {
  return head.querySelector(".visually-hidden") ? "" : (head.querySelector(".sort, .word") ?? head).textContent.trim();
}

// Sent twice by a double click, it would be two claims, or two tokens.
function onSubmit(event) {
  const form = event.target;
  if (event.defaultPrevented || form.getAttribute("method") !== "post") return;
  if (performance.now() - form.sentAt < TWICE_MS) event.preventDefault();
  else form.sentAt = performance.now();
}

// What was to be done was not: a page without scripts would show the server's own words instead. What is only asked for
// again says by its age that it is old.
function onFailure(event) {
  const { elt, requestConfig, xhr } = event.detail;
  if (requestConfig.verb === "get") return;
  const note = document.createElement("div");
  note.className = "note tone-bad";
  note.setAttribute("role", "alert");
  note.textContent = xhr?.status ? say("failed", xhr.status) : say("unsent");
  elt.querySelector(":scope > .note")?.remove();
  elt.prepend(note);
}

document.addEventListener("click", onClick);
document.addEventListener("input", onInput);
document.addEventListener("input", keepOneAmount);
document.addEventListener("change", (event) => {
  if (event.target.dataset.picksAll !== undefined) {
    for (const box of document.querySelectorAll("[name=pick]")) box.checked = event.target.checked;
  }
  // What is typed is sent by Enter or the button: a date changes with each digit, and Tab only leads to the next field.
  if (!event.target.matches("select, [type=checkbox], [type=radio]")) return;
  // A dialog that opens over a half-written filter takes its focus, and sends nothing.
  if (event.target.closest("dialog") || !document.querySelector("dialog[open]")) event.target.closest("[data-submit-on-change]")?.requestSubmit();
});
document.addEventListener("submit", onSubmit);
for (const failed of ["htmx:responseError", "htmx:sendError"]) document.body.addEventListener(failed, onFailure);
setInterval(tellAges, 1000);
labelCells();
// On a phone the bar's places are wider than it: where one is has to be seen.
const here = document.querySelector(".topbar-places [aria-current]");
if (here) here.closest("ul").scrollLeft = here.offsetLeft - here.closest("ul").clientWidth / 2;
document.body.addEventListener("htmx:afterSwap", labelCells);

const watched = document.querySelector("[data-watch]");
const series = document.getElementById("series");
const charts = series && new (await import("./charts.js")).Charts(JSON.parse(series.textContent));
if (watched) {
  const watch = new Watch(watched.dataset);
  if (charts) watch.show(charts);
  watch.start();
}
