// The palette: Ctrl-K, Cmd-K or "/" opens it from any page, arrows walk through what was found, Enter opens it. What is
// found comes from the search page's own view, fetched by htmx; without this module that page does the same.
const palette = document.getElementById("palette");
const words = document.getElementById("palette-words");
const found = document.getElementById("palette-found");

function open() {
  if (palette.open) return;
  palette.showModal();
  words.select();
  window.htmx.trigger(words, "opened");
}

function typing(element) {
  return element.isContentEditable || element.matches("input:not([type=checkbox], [type=radio], [type=range]), select, textarea");
}

document.addEventListener("keydown", (event) => {
  const shortcut = (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k";
  const slash = event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey && !typing(event.target);
  // A question that is being answered stays the only one.
  if ((!shortcut && !slash) || document.querySelector("dialog[open]:not(#palette)")) return;
  event.preventDefault();
  open();
});

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-palette-opens]");
  // A new tab is what was asked for then.
  if (opener && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    open();
  }
  if (event.target === palette) palette.close(); // its backdrop
});

palette.addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const hits = [...found.querySelectorAll("a.hit")];
  if (step && hits.length) {
    event.preventDefault();
    // Before the first is the field; after the last nothing.
    const next = Math.min(hits.indexOf(document.activeElement) + step, hits.length - 1);
    (hits[next] ?? words).focus();
  } else if (event.key.length === 1 && !event.ctrlKey && !event.metaKey && event.key !== " " && event.target.matches("a.hit")) {
    words.focus(); // what is typed goes on in the field
  }
});

// Enter in the field opens the first that was found for just these words; what is not yet found, the page finds.
words.form.addEventListener("submit", (event) => {
  const first = found.querySelector("a.hit");
  if (!first || found.firstElementChild.dataset.foundFor !== words.value.trim()) return;
  event.preventDefault();
  first.click();
});
