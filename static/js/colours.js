// The colour of a token of tokens.css in the present theme, as scripts that draw need it.
export function colourOf(token) {
  const probe = document.createElement("i");
  probe.style.color = `var(--${token})`;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}
