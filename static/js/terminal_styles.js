// xterm.js writes its sheets into <style> elements, and the colours of cells into style attributes. The pages' policy
// allows neither, as a stranger's markup could use them, too. Sheets and styles that scripts set through the CSSOM are allowed:
// so these two writes go there instead, and the policy stays.
export function allowStyles() {
  const create = Document.prototype.createElement;
  document.createElement = function (name, options) {
    return name === "style" ? styleElement() : create.call(document, name, options);
  };

  // An element in the place of a <style>, whose text is a sheet of the document.
  function styleElement() {
    const element = create.call(document, "span");
    const sheet = new CSSStyleSheet();
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
    element.hidden = true;
    Object.defineProperty(element, "textContent", { set: (text) => sheet.replaceSync(text) });
    return element;
  }

  const set = Element.prototype.setAttribute;
  HTMLSpanElement.prototype.setAttribute = function (name, value) {
    if (name === "style") this.style.cssText = value;
    else set.call(this, name, value);
  };
}
