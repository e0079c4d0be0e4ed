// A study's performance over two of its parameters, smoothed, with the region to recommend.

import { colour, draw, panel } from "./charts.js";
import { el, number, percent, select, slider } from "./dom.js";
import { mean } from "./segments.js";

const GRID = 40;
// Recommended: within this part of the surface's range from its best, and not farther than `NEAR` bandwidths from a trial.
const CLOSE = 0.1;
const NEAR = 0.35;

export function sensitivityView(app) {
  const surface = panel("Performance surface", { id: "surface", wide: true });
  const alone = panel("What one parameter alone says", { id: "alone", wide: true });
  const controls = el("div", { class: "bar controls" });
  const missing = el("p", { class: "alert hidden", role: "alert" }, "data/sensitivity.json is missing on this site. Build it again with bash scripts/docs.sh.");
  const root = el("div", {}, missing, controls, el("div", { class: "grid" }, surface, alone));
  const local = { study: 0, x: null, y: null, width: 0.15, scale: "value", studies: null };

  async function load() {
    const response = await fetch(new URL("data/sensitivity.json", import.meta.url));
    missing.classList.toggle("hidden", response.ok);
    local.studies = response.ok ? (await response.json()).studies : [];
  }

  // What the trials gave, or the share of them that gave less: a few disasters then do not colour the whole surface.
  function outcomes(study) {
    if (local.scale === "value") return study.values;
    return study.values.map((x) => study.values.filter((other) => other < x).length / Math.max(study.values.length - 1, 1));
  }

  // Parameters as numbers between 0 and 1, logarithms where they span orders of magnitude.
  function scaled(parameter, rows) {
    const raw = rows.map((i) => (parameter.log ? Math.log10(parameter.values[i]) : parameter.values[i]));
    const [low, high] = [Math.min(...raw), Math.max(...raw)];
    const back = (u) => { const v = low + u * (high - low); return parameter.log ? 10 ** v : v; };
    return { unit: raw.map((v) => (v - low) / (high - low || 1)), back };
  }

  // Kernel regression: the mean of the trials, near ones counting more; and how much of them is near.
  function smooth(u, v, points, values, width) {
    let [sum, weight] = [0, 0];
    points.forEach(([a, b], i) => {
      const w = Math.exp(-((a - u) ** 2 + (b - v) ** 2) / (2 * width ** 2));
      sum += w * values[i];
      weight += w;
    });
    return { value: weight > 1e-12 ? sum / weight : NaN, weight };
  }

  // Share of the differences between trials that one parameter explains: each trial told from the others by kernel regression.
  function explained(study, parameter) {
    const rows = study.values.map((_, i) => i).filter((i) => parameter.values[i] !== null);
    const unit = scaled(parameter, rows).unit;
    const all = outcomes(study);
    const values = rows.map((i) => all[i]);
    const others = (list, k) => list.filter((_, i) => i !== k);
    const total = mean(values.map((x, k) => (x - mean(others(values, k))) ** 2));
    const told = unit.map((u, k) => smooth(u, 0, others(unit, k).map((v) => [v, 0]), others(values, k), local.width).value);
    return Math.max(1 - mean(values.map((x, k) => (Number.isFinite(told[k]) ? x - told[k] : x - mean(others(values, k))) ** 2)) / (total || 1), 0);
  }

  function plotAlone(study) {
    const bars = study.parameters.map((p) => [p.name, explained(study, p)]).sort((a, b) => b[1] - a[1]);
    draw(alone, [{ type: "bar", orientation: "h", y: bars.map(([name]) => name), x: bars.map(([, x]) => x), text: bars.map(([, x]) => percent(x)), textposition: "auto", marker: { color: colour(0) } }],
      { height: 60 + 24 * bars.length, xaxis: { title: "share explained", tickformat: ".1~%", rangemode: "tozero" }, yaxis: { autorange: "reversed" } },
      `Share of the differences between trials that a parameter explains by itself, each trial being told from the others. 0 where it says nothing: it may still matter together with another.`);
  }

  function plot() {
    const study = local.studies[local.study];
    plotAlone(study);
    const [px, py] = [local.x, local.y].map((name) => study.parameters.find((p) => p.name === name));
    const rows = study.values.map((_, i) => i).filter((i) => px.values[i] !== null && py.values[i] !== null);
    const [x, y] = [scaled(px, rows), scaled(py, rows)];
    const points = rows.map((_, k) => [x.unit[k], y.unit[k]]);
    const all = outcomes(study);
    const values = rows.map((i) => all[i]);
    const ticks = Array.from({ length: GRID }, (_, i) => i / (GRID - 1));
    const grid = ticks.map((v) => ticks.map((u) => smooth(u, v, points, values, local.width)));
    const near = grid.map((row) => row.map((cell) => cell.weight > NEAR));
    const known = grid.flatMap((row, j) => row.filter((_, i) => near[j][i]).map((cell) => cell.value));
    const [worst, best] = [Math.min(...known), Math.max(...known)];
    const bound = best - CLOSE * (best - worst);
    const good = grid.map((row, j) => row.map((cell, i) => (near[j][i] && cell.value >= bound ? 1 : 0)));
    const inside = (axis) => ticks.filter((_, i) => (axis === "x" ? good.some((row) => row[i]) : good[i].some(Boolean)));
    const [gx, gy] = [inside("x").map(x.back), inside("y").map(y.back)];
    const axis = (parameter, scale) => ({ title: parameter.name, type: parameter.log ? "log" : "linear" });
    draw(surface, [
      { type: "contour", x: ticks.map(x.back), y: ticks.map(y.back), z: grid.map((row) => row.map((cell) => cell.value)), colorscale: "Cividis", contours: { coloring: "heatmap", showlines: false }, colorbar: { thickness: 10, outlinewidth: 0, title: { text: local.scale === "value" ? study.better : "share of trials that gave less", side: "right" } }, hovertemplate: "%{x:.3g}, %{y:.3g}: %{z:.4g}<extra></extra>" },
      { type: "contour", x: ticks.map(x.back), y: ticks.map(y.back), z: good, contours: { start: 0.5, end: 0.5, size: 1, coloring: "lines" }, line: { width: 3, color: "#ffffff" }, colorscale: [[0, "#ffffff"], [1, "#ffffff"]], showscale: false, hoverinfo: "skip" },
      { mode: "markers", x: rows.map((i) => px.values[i]), y: rows.map((i) => py.values[i]), text: rows.map((i) => number(study.values[i])), marker: { color: "#ffffff", size: 9, line: { color: "#000000", width: 1.5 } }, hovertemplate: "trial: %{text}<extra></extra>" },
    ], { height: 460, xaxis: axis(px), yaxis: axis(py) },
    `${rows.length} trials (points) of ${study.name}; other parameters differ between them. Recommended (inside the white line): ${px.name} ${number(Math.min(...gx))} to ${number(Math.max(...gx))}, ${py.name} ${number(Math.min(...gy))} to ${number(Math.max(...gy))}. ${rows.length < 100 ? "With so few trials it is a hint, no more." : ""}`);
  }

  async function render() {
    if (!local.studies?.length) await load();
    if (!local.studies.length) return;
    const study = local.studies[local.study];
    const names = study.parameters.map((p) => p.name);
    local.x ??= names.includes("learning_rate") ? "learning_rate" : names[0];
    local.y ??= names.includes("one_minus_gamma") ? "one_minus_gamma" : names[1];
    const change = (key) => (value) => { local[key] = value; if (local.x !== local.y) plot(); };
    controls.replaceChildren(
      select("study", "study", local.studies.map((s, i) => [i, s.name]), local.study, (i) => { local.study = Number(i); local.x = local.y = null; render(); }),
      select("across", "across", names, local.x, change("x")),
      select("up", "up", names, local.y, change("y")),
      select("scale", "colours", [["value", "by value"], ["rank", "by rank"]], local.scale, (kind) => { local.scale = kind; plot(); }),
      slider("width", "smoothing", { min: 0.05, max: 0.4, step: 0.01, show: (x) => x.toFixed(2) }, local.width, change("width")),
    );
    plot();
  }

  return { root, render, stop() {} };
}
