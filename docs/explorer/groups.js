// The groups of a rollout: their members' paths, how they come about, what they are like.

import { colour, dash, draw, panel, symbol } from "./charts.js";
import { checkbox, el, number, select, slider } from "./dom.js";
import { analyse, clusters, episodeFeatures } from "./grouping.js";
import { segmentCount, segmentMean } from "./segments.js";
import { stage, traceOf } from "./stage.js";
import { impact } from "./weights.js";

export function groupsView(app) {
  const parts = {
    paths: panel("Members, group by group", { id: "paths", wide: true }),
    forming: panel("How the groups come about", { id: "forming" }),
    sizes: panel("Sizes", { id: "sizes" }),
    radar: panel("What they are like", { id: "radar" }),
  };
  const local = { label: 0, t: 40, x: "return", y: "length", frame: Infinity, timer: null };
  const stageBox = el("div");
  const stageControls = el("div", { class: "bar" });
  const formingControls = el("div", { class: "bar" });
  parts.forming.querySelector(".plot").before(formingControls);
  const stagePanel = el("figure", { class: "panel" }, el("figcaption", {}, "One group, step by step"), stageControls, stageBox);
  const root = el("div", { class: "grid" }, parts.paths, stagePanel, parts.forming, parts.sizes, parts.radar);

  function stop() {
    clearInterval(local.timer);
    local.timer = null;
  }

  function play(button, tick) {
    const running = local.timer !== null;
    stop();
    if (running) { button.textContent = button.dataset.name; return; }
    button.textContent = "Pause";
    local.timer = setInterval(() => {
      if (!document.contains(button) || !tick()) { stop(); button.textContent = button.dataset.name; }
    }, app.calm ? 250 : 60);
  }

  function membersOf(result, label) {
    return [...result.labels.keys()].filter((e) => result.labels[e] === label);
  }

  function showStage(result) {
    const { rollout } = result;
    const members = membersOf(result, local.label).slice(0, 8);
    stageBox.replaceChildren(stage(rollout, members, local.t, `${result.names[local.label]} at step ${local.t}`));
  }

  function renderStage(result) {
    const { rollout, names } = result;
    local.label = Math.min(local.label, names.length - 1);
    local.t = Math.min(local.t, rollout.maxLength - 1);
    const button = el("button", { type: "button", name: "play", "data-name": "Play" }, "Play");
    const time = slider("time", "step", { min: 0, max: rollout.maxLength - 1, step: 1 }, local.t, (t) => { local.t = t; showStage(result); });
    button.addEventListener("click", () => play(button, () => {
      local.t = (local.t + 1) % rollout.maxLength;
      time.querySelector("input").value = local.t;
      time.querySelector("output").textContent = local.t;
      showStage(result);
      return local.t < rollout.maxLength - 1;
    }));
    stageControls.replaceChildren(
      select("label", "group", names.map((name, k) => [k, name]), local.label, (k) => { local.label = Number(k); showStage(result); }),
      time, button,
    );
    showStage(result);
  }

  function renderPaths(result) {
    const { rollout, labels, names } = result;
    const room = Math.max(1, Math.floor(parts.paths.clientWidth / 220) || 3);
    const rows = Math.ceil(names.length / room);
    const columns = Math.ceil(names.length / rows);
    const layout = { height: 190 * rows + 30, annotations: [], margin: { l: 44, r: 8, t: 22, b: 36 } };
    const traces = [];
    names.forEach((name, k) => {
      const [row, column] = [Math.floor(k / columns), k % columns];
      const suffix = k ? k + 1 : "";
      const [x0, x1] = [column / columns, (column + 0.92) / columns];
      const [y0, y1] = [1 - (row + 0.78) / rows, 1 - row / rows];
      const { names: axes } = traceOf(rollout, 0);
      layout[`xaxis${suffix}`] = { domain: [x0, x1], anchor: `y${suffix}`, matches: k ? "x" : undefined, title: row === rows - 1 ? axes[0] : "" };
      layout[`yaxis${suffix}`] = { domain: [y0, y1], anchor: `x${suffix}`, matches: k ? "y" : undefined, title: column ? "" : axes[1], showticklabels: column === 0 };
      layout.annotations.push({ text: name, showarrow: false, xref: "paper", yref: "paper", x: x0, y: y1, xanchor: "left", yanchor: "bottom", font: { size: 12 } });
      membersOf(result, k).forEach((e, i) => {
        const { x, y } = traceOf(rollout, e);
        traces.push({ x, y, mode: "lines", xaxis: `x${suffix}`, yaxis: `y${suffix}`, line: { color: colour(i), dash: dash(i), width: 1.5 }, opacity: 0.85, name: `episode ${e + 1}`, hovertemplate: `episode ${e + 1}<extra></extra>` });
      });
    });
    draw(parts.paths, traces, layout, `${labels.length} episodes of ${rollout.env} in ${names.length} groups, one colour per member. ${
      app.settings.grouping === "seed" ? "Members of a group share their reset seed: they start in one state and live through the same luck." : "Here a group is what the grouping says; its members need not share a start."}`);
  }

  function renderForming(result) {
    const { rollout, labels, names } = result;
    const features = episodeFeatures(rollout);
    const all = Object.keys(features);
    if (!(local.x in features)) local.x = "return";
    if (!(local.y in features)) local.y = "length";
    const auto = app.settings.grouping === "auto";
    const frames = auto ? clusters(rollout, app.settings) : null;
    const button = el("button", { type: "button", name: "form", "data-name": "Form clusters", disabled: !auto }, "Form clusters");
    button.addEventListener("click", () => {
      if (local.timer === null) local.frame = 0;
      play(button, () => { local.frame += 0.08; plot(); return local.frame < frames.length; });
    });
    formingControls.replaceChildren(
      select("x", "across", all, local.x, (x) => { local.x = x; plot(); }),
      select("y", "up", all, local.y, (y) => { local.y = y; plot(); }),
      button,
    );
    if (auto) {
      const chosen = app.settings.features;
      const toggle = (name) => (on) => app.set({ features: on ? [...chosen, name] : chosen.filter((x) => x !== name) });
      const boxes = all.slice(0, 10).map((name) => checkbox(`feature ${name}`, name, chosen.includes(name), toggle(name), chosen.length === 1 && chosen.includes(name)));
      formingControls.append(el("fieldset", { class: "control radios" }, el("legend", {}, "clusters by"), el("div", {}, ...boxes)));
    }
    function plot() {
      const frame = auto ? frames[Math.min(Math.floor(local.frame), frames.length - 1)] : null;
      const shown = auto ? frame.labels : labels;
      const groups = [...new Set(shown)].sort((a, b) => a - b);
      const traces = groups.map((k) => {
        const own = [...labels.keys()].filter((e) => shown[e] === k);
        return { x: own.map((e) => features[local.x][e]), y: own.map((e) => features[local.y][e]), mode: "markers", name: names[k] ?? `cluster ${k + 1}`, text: own.map((e) => `episode ${e + 1}`), marker: { color: colour(k), symbol: symbol(k), size: 9, opacity: 0.8 }, hovertemplate: "%{text}<extra></extra>" };
      });
      const iteration = auto ? ` Iteration ${Math.min(Math.floor(local.frame), frames.length - 1) + 1} of ${frames.length}.` : "";
      draw(parts.forming, traces, { showlegend: true, height: 320, xaxis: { title: local.x }, yaxis: { title: local.y } }, `Each point is an episode.${iteration}`);
    }
    plot();
  }

  function renderCharacter(result) {
    const { rollout, labels, names, rowLabel } = result;
    const n = names.length;
    const episodes = segmentCount(labels, n);
    const steps = segmentCount(rowLabel, n);
    draw(parts.sizes, [
      { type: "bar", x: names, y: episodes, name: "episodes", marker: { color: colour(0) }, offsetgroup: "episodes" },
      { type: "bar", x: names, y: steps, name: "steps", yaxis: "y2", marker: { color: colour(1), pattern: { shape: "/" } }, offsetgroup: "steps" },
    ], { showlegend: true, height: 300, barmode: "group", yaxis: { title: "episodes" }, yaxis2: { title: "steps", overlaying: "y", side: "right", showgrid: false }, margin: { l: 48, r: 56, t: 8, b: 40 } },
    `The largest group has ${Math.max(...steps)} steps, the smallest ${Math.min(...steps)}.`);
    const features = episodeFeatures(rollout);
    const found = impact(result, app.settings);
    const axes = {
      "return": segmentMean(features.return, labels, n), "length": segmentMean(features.length, labels, n),
      "reward per step": segmentMean(features["mean reward"], labels, n), "spread of rewards": segmentMean(features["spread of rewards"], labels, n),
      "share of the loss": found.share, "clipped": found.clipped,
    };
    const theta = Object.keys(axes);
    const unit = theta.map((name) => {
      const [low, high] = [Math.min(...axes[name]), Math.max(...axes[name])];
      return Array.from(axes[name], (x) => (high > low ? (x - low) / (high - low) : 0.5));
    });
    const traces = names.map((name, k) => ({
      type: "scatterpolar", mode: "lines+markers", name, theta: [...theta, theta[0]], r: [...unit.map((u) => u[k]), unit[0][k]],
      line: { color: colour(k), dash: dash(k) }, marker: { symbol: symbol(k), size: 6 }, text: theta.map((axis) => number(axes[axis][k])), hovertemplate: "%{theta}: %{text}<extra></extra>",
    }));
    const ink = getComputedStyle(root).getPropertyValue("--page-line");
    draw(parts.radar, traces, { showlegend: true, height: 340, margin: { l: 60, r: 60, t: 24, b: 24 }, polar: { bgcolor: "rgba(0,0,0,0)", radialaxis: { range: [0, 1.05], showticklabels: false, gridcolor: ink }, angularaxis: { gridcolor: ink } } },
      "On each axis the group with the least is at the centre, the one with the most at the rim.");
  }

  function render() {
    stop();
    const result = analyse(app.rollout, app.settings);
    local.frame = Infinity;
    renderPaths(result);
    renderStage(result);
    renderForming(result);
    renderCharacter(result);
  }

  return { root, render, stop };
}
