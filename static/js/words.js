// What scripts say, in the page's language: the template with the id `words` has it as data attributes.
const said = document.getElementById("words").dataset;

// The words of that name, or the name where there are none; each {0}, {1} … is replaced by the value at that place.
export function say(name, ...values) {
  return (said[name] ?? name).replace(/\{(\d)\}/g, (_, at) => values[at]);
}
