// What scripts say, in the page's language: the template with the id `words` has it as data attributes.
const said = document.getElementById("words").dataset;

// The words of that name, or the name where there are none; each {0}, {1} … is replaced by the value at that place.
export function say(name, ...values) {
  return (said[name] ?? name).replace(/\{(\d)\}/g, (_, at) => values[at]);
}

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

// A length of time in its largest unit: `24 min`.
export function duration(seconds) {
  const [size, unit] = UNITS.find(([size]) => seconds >= size) ?? UNITS.at(-1);
  return say(unit, Math.floor(seconds / size));
}

// An age in its largest unit: `24 min ago`.
export function ago(seconds) {
  if (seconds < 1) return say("now");
  return say("ago", duration(seconds));
}
