// The end of a share in a GPU's bar can be dragged: the share's form then says the number, and waits for Apply.
const MEMORY_STEP = 64; // MiB

function begin(event) {
  const grip = event.target.closest("[data-moves]");
  const field = grip && document.getElementById(grip.dataset.moves);
  if (!field) return;
  event.preventDefault();
  grip.setPointerCapture(event.pointerId);
  grip.dataset.moving = ""; // the bar is not fetched anew meanwhile
  const before = field.value;
  const move = ({ clientX }) => show(grip, field, amount(grip, clientX));
  const end = ({ type }) => {
    grip.removeEventListener("pointermove", move);
    delete grip.dataset.moving;
    if (type === "pointercancel") show(grip, field, before);
    else if (field.value !== before) field.form.querySelector(".btn-primary").focus();
  };
  grip.addEventListener("pointermove", move);
  for (const over of ["pointerup", "pointercancel"]) grip.addEventListener(over, end, { once: true });
}

// What the share would be if it ended there: at least a step, at most the whole GPU.
function amount({ dataset, ownerSVGElement }, clientX) {
  const box = ownerSVGElement.getBoundingClientRect();
  const whole = Number(dataset.whole);
  const step = whole > 100 ? MEMORY_STEP : 1;
  const wanted = whole * ((clientX - box.left) / box.width - Number(dataset.start) / 100);
  return Math.min(whole, Math.max(step, step * Math.round(wanted / step)));
}

function show(grip, field, value) {
  const width = 100 * value / Number(grip.dataset.whole);
  for (const side of ["x1", "x2"]) grip.setAttribute(side, Number(grip.dataset.start) + width);
  grip.ownerSVGElement.querySelector(`[data-shows="${CSS.escape(grip.dataset.moves)}"]`).setAttribute("width", width);
  const limit = field.form.elements.core_limit;
  // A limit that was the request stays it, and none is below it.
  if (field.name === "core_request" && (limit.value === field.value || Number(limit.value) < value)) write(limit, value);
  write(field, value);
}

function write(field, value) {
  field.value = value;
  field.dispatchEvent(new Event("input", { bubbles: true }));
}

document.addEventListener("pointerdown", begin);
