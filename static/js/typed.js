// What was typed on a page whose session ended: kept in this tab over the sign-in, and put back for the same user. It is
// forgotten on any other way out of the page. Passwords and files are never kept. With it come the values that the user
// saw (the version of the row, or each field's own): if somebody changed them meanwhile, the server says so before it
// applies what comes back.
const KEY = "typed";
const user = document.querySelector(".who span")?.textContent; // none on the sign-in page

function forms() {
  return [...document.querySelectorAll("main form[method=post]")];
}

function fields(form) {
  return [...form.elements].filter((field) => field.name && !field.matches("button, fieldset, [type=hidden], [type=password], [type=file]"));
}

// What the form says of the values that its reader saw.
function seen(form) {
  return [...form.elements].filter(({ name, type }) => type === "hidden" && /^(initial-|version$)/.test(name)).map(({ name, value }) => [name, value]);
}

function changed(field) {
  if (field.matches("select")) return [...field.options].some((option) => option.selected !== option.defaultSelected);
  return field.matches("[type=checkbox], [type=radio]") ? field.checked !== field.defaultChecked : field.value !== field.defaultValue;
}

// The same field again: radio buttons share a name.
function isSame(field, { name, kind, of }) {
  return field.name === name && field.type === kind && (of === null || field.value === of);
}

function keep() {
  const typed = forms().flatMap((form) => fields(form).filter(changed).map((field) => ({
    action: form.getAttribute("action"), name: field.name, kind: field.type, value: field.value, checked: field.checked,
    of: field.matches("[type=checkbox], [type=radio]") ? field.value : null, seen: seen(form),
  })));
  if (typed.length) sessionStorage.setItem(KEY, JSON.stringify({ user, path: location.pathname, typed }));
}

function restore(kept) {
  for (const one of kept.typed) {
    const form = forms().find((form) => form.getAttribute("action") === one.action);
    const field = form && fields(form).find((field) => isSame(field, one));
    if (!field) continue;
    field.value = one.value;
    if (one.of !== null) field.checked = one.checked;
    for (const [name, value] of one.seen) form.elements[name]?.setAttribute("value", value);
    field.closest("details")?.setAttribute("open", "");
  }
}

const kept = JSON.parse(sessionStorage.getItem(KEY));
if (user === undefined) {
  const note = document.getElementById("typed-kept");
  // A wrong password leads to this page again, without the note.
  if (kept && (note || kept.ended)) sessionStorage.setItem(KEY, JSON.stringify({ ...kept, ended: true }));
  else sessionStorage.removeItem(KEY);
  if (note) note.hidden = !kept;
} else {
  sessionStorage.removeItem(KEY);
  if (kept?.ended && kept.user === user && kept.path === location.pathname) restore(kept);
  addEventListener("pagehide", keep);
}
