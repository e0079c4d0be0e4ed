// How a training divided its attention: shares over time, learning curves, balance, conflicts between gradients.

import { colour, dash, diverging, draw, panel, symbol } from "./charts.js";
import { el, number, percent } from "./dom.js";

const byPrefix = (columns, prefix) => Object.keys(columns).filter((name) => name.startsWith(prefix));

export function tasksView(app) {
  const parts = {
    shares: panel("Share of the loss over time", { id: "shares" }),
    curves: panel("Learning curves", { id: "curves" }),
    balance: panel("Balance", { id: "balance" }),
    conflicts: panel("Where gradients point against each other", { id: "conflicts" }),
  };
  const why = el("p", { class: "alert", id: "why", role: "status" });
  const root = el("div", {}, why, el("div", { class: "grid" }, parts.shares, parts.curves, parts.balance, parts.conflicts));

  function shares(history) {
    const names = byPrefix(history.columns, "share/");
    parts.shares.classList.toggle("hidden", !names.length);
    if (!names.length) return;
    const traces = names.map((name, k) => ({ x: history.steps, y: history.columns[name], name: name.slice(6), stackgroup: "one", mode: "lines", line: { color: colour(k), width: 1 }, fillpattern: { shape: ["", "/", ".", "\\"][k % 4], fgcolor: colour(k), fgopacity: 0.5 } }));
    const last = names.map((name) => `${name.slice(6)} ${percent(history.columns[name].at(-1))}`).join(", ");
    draw(parts.shares, traces, { showlegend: true, xaxis: { title: "env steps" }, yaxis: { title: "share", range: [0, 1], tickformat: ".0%" } }, `At the end: ${last}.`);
  }

  function curves(history) {
    const tasks = byPrefix(history.columns, "task/");
    const names = tasks.length ? tasks : ["rollout/ep_rew_mean"].filter((name) => name in history.columns);
    const scaled = (column) => {
      const known = column.filter((x) => x !== null);
      const [low, high] = [Math.min(...known), Math.max(...known)];
      return column.map((x) => (x === null ? null : (x - low) / (high - low || 1)));
    };
    const relative = tasks.length > 1;
    const traces = names.map((name, k) => ({ x: history.steps, y: relative ? scaled(history.columns[name]) : history.columns[name], text: history.columns[name].map((x) => number(x ?? NaN)), name: name.split("/")[1], mode: "lines+markers", connectgaps: true, line: { color: colour(k), dash: dash(k) }, marker: { size: 4, symbol: symbol(k) }, hovertemplate: "%{text}<extra>%{fullData.name}</extra>" }));
    draw(parts.curves, traces, { showlegend: true, xaxis: { title: "env steps" }, yaxis: { title: relative ? "return, worst 0 to best 1" : "return of an episode" } },
      relative ? "Each task between its own worst and best rollout: their rewards differ by orders of magnitude. Returns when pointed at." : "Mean return of the last episodes.");
  }

  function balance(history) {
    const shown = ["group/frac_zero_std", "train/clip_fraction", "train/conflict_rate", "train/explained_variance"].filter((name) => name in history.columns);
    const jain = byPrefix(history.columns, "share/");
    const traces = shown.map((name, k) => ({ x: history.steps, y: history.columns[name].map((x) => (x === null ? null : Math.max(x, -1))), name, mode: "lines", line: { color: colour(k), dash: ["solid", "dash", "dot", "dashdot"][k] } }));
    if (jain.length) {
      const evenness = history.steps.map((_, i) => {
        const s = jain.map((name) => history.columns[name][i] ?? 0);
        return s.reduce((a, b) => a + b, 0) ** 2 / (s.length * s.reduce((a, b) => a + b * b, 0) || 1);
      });
      traces.push({ x: history.steps, y: evenness, name: "evenness of shares", mode: "lines", line: { color: colour(5), width: 3 } });
    }
    draw(parts.balance, traces, { showlegend: true, xaxis: { title: "env steps" }, yaxis: { title: "value" } },
      "Groups without spread, clipped steps, pairs of tasks in conflict, explained variance (cut at -1)" + (jain.length ? "; evenness is 1 where all shares are equal (Jain)." : "."));
  }

  function conflicts({ labels, cosines }) {
    const z = cosines.map((row) => [...row]);
    const text = z.map((row) => row.map((x) => x.toFixed(2)));
    const against = z.flatMap((row, i) => row.filter((x, j) => j > i && x < 0)).length;
    draw(parts.conflicts, [{ type: "heatmap", x: labels, y: labels, z, text, texttemplate: "%{text}", zmin: -1, zmax: 1, colorscale: diverging(), colorbar: { thickness: 10, outlinewidth: 0 } }],
      { height: 320, yaxis: { autorange: "reversed" } },
      `Cosine between the policy gradients of two ${app.rollout.tasks.length ? "tasks" : "groups"}, over all parameters; ${against} of ${(labels.length * (labels.length - 1)) / 2} pairs point against each other.`);
  }

  function render() {
    const { history, tasks } = app.rollout;
    const missing = [];
    if (!byPrefix(history.columns, "share/").length) missing.push("no shares of the loss, as it was trained without multitask=dict(weights=...)");
    if (!tasks.length) missing.push("no curves by task, as the env has one task: conflicts are those between groups");
    why.textContent = missing.length ? `This recording has ${missing.join("; and ")}.` : "";
    why.classList.toggle("hidden", !missing.length);
    shares(history);
    curves(history);
    balance(history);
    conflicts(app.rollout.conflicts);
  }

  return { root, render, stop() {} };
}
