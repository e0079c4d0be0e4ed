// Charts in the page's colours, by Plotly; each has a title, and a sentence that says what it shows.

import { el } from "./dom.js";

// Okabe and Ito: told apart by colour-blind readers. Line styles and symbols tell what is beyond.
export const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A6FDF", "#7F7F7F"];
const DASHES = ["solid", "dash", "dot"];
const SYMBOLS = ["circle", "square", "diamond", "cross", "triangle-up", "x", "star", "pentagon"];

export const colour = (k) => COLOURS[k % COLOURS.length];
export const dash = (k) => DASHES[Math.floor(k / COLOURS.length) % DASHES.length];
export const symbol = (k) => SYMBOLS[k % SYMBOLS.length];

// Diverging, blue to orange, through the page's background.
export const diverging = () => [[0, "#0072B2"], [0.5, style("--page-surface")], [1, "#D55E00"]];

export const style = (name) => getComputedStyle(document.querySelector("#grpo-page")).getPropertyValue(name).trim();

// A place for a chart.
export function panel(title, { id, wide = false } = {}) {
  const plot = el("div", { class: "plot", id });
  const note = el("p", { class: "note", id: `${id}-note` });
  return el("figure", { class: wide ? "panel wide" : "panel" }, el("figcaption", {}, title), plot, note);
}

function themed(layout) {
  const [ink, grid] = [style("--page-ink"), style("--page-line")];
  const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, automargin: true, title: { standoff: 6 } };
  const axes = Object.fromEntries(
    Object.keys({ xaxis: 1, yaxis: 1, ...layout }).filter((name) => /^[xy]axis\d*$/.test(name))
      .map((name) => [name, { ...axis, ...layout[name], title: { standoff: 6, ...(typeof layout[name]?.title === "string" ? { text: layout[name].title } : layout[name]?.title) } }]),
  );
  return {
    margin: { l: 48, r: 12, t: 8, b: 40 }, height: 280, showlegend: false, hovermode: "closest",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: ink },
    legend: { orientation: "h", y: -0.24, x: 0 },
    ...layout, ...axes,
  };
}

// Draw into a panel made by panel(); `says` becomes its sentence and what a screen reader says.
export function draw(figure, traces, layout, says) {
  const plot = figure.querySelector(".plot");
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-label", `${figure.querySelector("figcaption").textContent}. ${says}`);
  figure.querySelector(".note").textContent = says;
  return window.Plotly.react(plot, traces, themed(layout), { displayModeBar: false, responsive: true });
}

export function onClick(figure, handler) {
  const plot = figure.querySelector(".plot");
  plot.removeAllListeners?.("plotly_click");
  plot.on("plotly_click", (event) => handler(event.points[0]));
}
