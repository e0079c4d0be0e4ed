// Advantages before and after: over everything, within groups, and paired; what a step's is made of; what groups do to the loss.

import { colour, dash, diverging, draw, onClick, panel } from "./charts.js";
import { el, number, percent } from "./dom.js";
import { explain } from "./explain.js";
import { analyse } from "./grouping.js";
import { std } from "./segments.js";
import { impact } from "./weights.js";

// The three comparisons, as changes to the reader's settings.
const MODES = [
  { name: "global", change: { grouping: "seed", baseline: "global", normalize: "batch", paired: false } },
  { name: "group", change: { paired: false } },
  { name: "paired", change: { estimator: "state", paired: true } },
];
const BINS = 60;

export function advantagesView(app) {
  const parts = {
    before: panel("Before normalisation", { id: "before" }),
    after: panel("After normalisation", { id: "after" }),
    boxes: panel("Advantages by group", { id: "boxes" }),
    impact: panel("What each group does to the gradient", { id: "impact", wide: true }),
    heat: panel("Advantage of every member at every step", { id: "heat", wide: true }),
  };
  const formula = el("pre", { class: "formula", id: "formula", "aria-live": "polite", tabindex: "0" });
  const member = el("input", { type: "number", name: "episode", min: "1", value: "1" });
  const time = el("input", { type: "number", name: "step", min: "0", value: "0" });
  const pick = el("div", { class: "bar" },
    el("label", { class: "control" }, el("span", {}, "episode"), member), el("label", { class: "control" }, el("span", {}, "step"), time));
  const formulaPanel = el("figure", { class: "panel" }, el("figcaption", {}, "One step, with its numbers"), pick, formula,
    el("p", { class: "note" }, "Click a cell of the map above, or choose an episode and a step."));
  const dead = el("p", { class: "alert", id: "dead", role: "status" });
  const table = el("div", { class: "scroll" });
  parts.impact.append(table);
  const root = el("div", {}, dead, el("div", { class: "grid" }, parts.before, parts.after, parts.heat, formulaPanel, parts.boxes, parts.impact));
  let result;

  function choose(episode, step) {
    const { rollout } = result;
    app.selected.episode = Math.min(Math.max(Math.round(episode) || 0, 0), rollout.lengths.length - 1);
    app.selected.step = Math.min(Math.max(Math.round(step) || 0, 0), rollout.lengths[app.selected.episode] - 1);
    member.value = app.selected.episode + 1;
    time.value = app.selected.step;
    member.max = rollout.lengths.length;
    time.max = rollout.lengths[app.selected.episode] - 1;
    const row = rollout.first[app.selected.episode] + app.selected.step;
    formula.textContent = explain(result, app.settings, row).join("\n");
    formula.dataset.row = row;
  }
  member.addEventListener("change", () => choose(Number(member.value) - 1, Number(time.value)));
  time.addEventListener("change", () => choose(Number(member.value) - 1, Number(time.value)));

  function histograms() {
    const columns = MODES.map(({ name, change }) => {
      const settings = { ...app.settings, ...change };
      const raw = analyse(app.rollout, { ...settings, normalize: "none" }).advantages;
      return { name, before: raw, after: analyse(app.rollout, settings).advantages };
    });
    for (const [part, which] of [[parts.before, "before"], [parts.after, "after"]]) {
      const all = columns.flatMap((column) => Array.from(column[which])).sort((a, b) => a - b);
      const [low, high] = [all[Math.floor(0.005 * all.length)], all[Math.ceil(0.995 * all.length) - 1]];
      const size = (high - low || 1) / BINS;
      const traces = columns.map((column, k) => ({ ...outline(column[which], low, size), name: column.name, mode: "lines", line: { color: colour(k), width: 2, shape: "hv", dash: ["solid", "dash", "dot"][k] } }));
      const spreads = columns.map((column) => `${column.name} ${number(std(column[which]))}`).join(", ");
      draw(part, traces, { showlegend: true, xaxis: { title: "advantage" }, yaxis: { title: "steps" } }, `Standard deviation: ${spreads}.`);
    }
  }

  function outline(values, low, size) {
    const counts = new Array(BINS).fill(0);
    for (const x of values) counts[Math.min(Math.max(Math.floor((x - low) / size), 0), BINS - 1)] += 1;
    return { x: counts.map((_, i) => low + i * size), y: counts };
  }

  function boxes() {
    const { names, rowLabel, advantages } = result;
    const traces = names.map((name, k) => ({ type: "box", name, y: Array.from(advantages).filter((_, i) => rowLabel[i] === k), marker: { color: colour(k), size: 3 }, boxpoints: false, line: { width: 1.5 } }));
    draw(parts.boxes, traces, { height: 300, yaxis: { title: "advantage" } }, "Box: the middle half of the group's steps; line: their median.");
  }

  function heat() {
    const { rollout, advantages, labels, names } = result;
    const order = [...rollout.lengths.keys()].sort((a, b) => labels[a] - labels[b] || a - b);
    const z = order.map((e) => Array.from({ length: rollout.maxLength }, (_, i) => (i < rollout.lengths[e] ? advantages[rollout.first[e] + i] : null)));
    const sizes = Array.from(advantages, Math.abs).sort((a, b) => a - b);
    const limit = sizes[Math.floor(0.99 * (sizes.length - 1))] || 1;
    const y = order.map((e) => `${names[labels[e]]}, ep. ${e + 1}`);
    draw(parts.heat, [{ type: "heatmap", z, y, x: z[0].map((_, i) => i), zmin: -limit, zmax: limit, colorscale: diverging(), colorbar: { thickness: 10, outlinewidth: 0 }, hoverongaps: false, hovertemplate: "%{y}, step %{x}: %{z:.3g}<extra></extra>" }],
      { height: Math.max(260, 13 * order.length + 60), xaxis: { title: "step" }, yaxis: { autorange: "reversed", showgrid: false, ticks: "", nticks: Math.min(order.length, 40), tickfont: { size: 10 } } },
      "One row per member, one column per step; orange is better than expected, blue is worse. Empty where the episode has ended.");
    onClick(parts.heat, (point) => choose(order[y.indexOf(point.y)], point.x));
  }

  function shares() {
    const { names } = result;
    const { wanted, progress, share, clipped, norm, rows } = impact(result, app.settings);
    draw(parts.impact, [{ type: "bar", orientation: "h", y: names, x: share, marker: { color: names.map((_, k) => colour(k)) }, text: Array.from(share, percent), textposition: "auto" }],
      { height: 60 + 26 * names.length, xaxis: { title: "share of the loss", tickformat: ".0%" }, yaxis: { autorange: "reversed" } },
      "Weight: the group's part of all weights of steps. Share: of the weighted sum of absolute advantages. Clipped: steps that earn nothing more after one recorded update. Norm: of the group's part of the gradient, by the outputs of the policy network."
      + (progress ? ` Weight = ${app.settings.floor} / ${names.length} + (1 - ${app.settings.floor}) x progress / sum of all; progress: how far the returns' fast average is from the slow one, in standard deviations.` : ""));
    const columns = { group: names, steps: rows, ...(progress ? { progress: progress.map((x) => number(x)) } : {}), weight: wanted.map(percent), share: Array.from(share, percent), clipped: Array.from(clipped, percent), norm: Array.from(norm, (x) => number(x)) };
    const cells = names.map((_, k) => el("tr", {}, ...Object.values(columns).map((column) => el("td", {}, String(column[k])))));
    const head = el("tr", {}, ...Object.keys(columns).map((x) => el("th", { scope: "col" }, x)));
    table.replaceChildren(el("table", { id: "impact-table" }, el("thead", {}, head), el("tbody", {}, ...cells)));
  }

  function render() {
    result = analyse(app.rollout, app.settings);
    const empty = result.alive.filter((x) => !x).length;
    dead.textContent = empty ? `${empty} of ${result.alive.length} groups have no spread: all their advantages are 0, and the update leaves them out.` : "";
    dead.classList.toggle("hidden", !empty);
    histograms();
    boxes();
    heat();
    shares();
    choose(app.selected.episode, app.selected.step);
  }

  return { root, render, stop() {} };
}
