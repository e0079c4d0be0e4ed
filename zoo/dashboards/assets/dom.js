// Small helpers for making elements; a control is a label with an input in it.

export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function select(name, label, options, value, change) {
  const input = el("select", { name, onchange: (event) => change(event.target.value) });
  for (const option of options) {
    const [key, text] = Array.isArray(option) ? option : [option, option];
    input.append(el("option", { value: String(key), selected: String(key) === String(value) }, text));
  }
  return el("label", { class: "control" }, el("span", {}, label), input);
}

export function slider(name, label, { min, max, step, show = String }, value, change) {
  const output = el("output", {}, show(value));
  const input = el("input", { type: "range", name, min: String(min), max: String(max), step: String(step) });
  input.value = value;
  input.addEventListener("input", () => {
    output.textContent = show(Number(input.value));
    change(Number(input.value));
  });
  return el("label", { class: "control" }, el("span", {}, label, " ", output), input);
}

export function checkbox(name, label, value, change, disabled = false) {
  const input = el("input", { type: "checkbox", name, checked: value, disabled, onchange: (event) => change(event.target.checked) });
  return el("label", { class: "control check" }, input, el("span", {}, label));
}

export function radios(name, label, options, value, change) {
  const choices = options.map((option) => {
    const [key, text] = Array.isArray(option) ? option : [option, option];
    const input = el("input", { type: "radio", name, value: key, checked: key === value, onchange: () => change(key) });
    return el("label", {}, input, el("span", {}, text));
  });
  return el("fieldset", { class: "control radios" }, el("legend", {}, label), el("div", {}, ...choices));
}

export const number = (x, digits = 3) => {
  if (!Number.isFinite(x)) return "-";
  const size = Math.abs(x);
  if (size !== 0 && (size >= 1e5 || size < 1e-3)) return x.toExponential(2);
  return Number(x.toPrecision(digits + 1)).toString();
};

export const percent = (x) => `${(100 * x).toFixed(x < 0.1 ? 1 : 0)} %`;
