// Members of a group at one moment, in the env's own terms: carts and poles, landers, queues.

import { colour } from "./charts.js";
import { el, svg } from "./dom.js";

const WIDTH = 480;
const HEIGHT = 240;

// Rows of the members at time t; one that has ended stays where it was.
const rowsAt = (rollout, members, t) => members.map((e) => rollout.first[e] + Math.min(t, rollout.lengths[e] - 1));

function cartpole(rollout, members, t) {
  const [x, , angle] = rollout.observations;
  const place = (value) => WIDTH / 2 + (value / 2.4) * (WIDTH / 2 - 30);
  const shapes = rowsAt(rollout, members, t).flatMap((row, k) => {
    const [cx, cy] = [place(x[row]), 190];
    const ended = t >= rollout.lengths[members[k]];
    const look = { stroke: colour(k), "stroke-width": 5, opacity: ended ? 0.25 : 0.85, "stroke-linecap": "round" };
    return [
      svg("rect", { x: cx - 22, y: cy - 9, width: 44, height: 18, rx: 3, fill: colour(k), opacity: ended ? 0.12 : 0.3 }),
      svg("line", { x1: cx, y1: cy - 6, x2: cx + 120 * Math.sin(angle[row]), y2: cy - 6 - 120 * Math.cos(angle[row]), ...look }),
    ];
  });
  return [svg("line", { x1: 10, x2: WIDTH - 10, y1: 199, y2: 199, stroke: "currentColor", opacity: 0.5 }), ...shapes];
}

function lander(rollout, members, t) {
  const [x, y, , , angle] = rollout.observations;
  const at = (row) => [WIDTH / 2 + x[row] * (WIDTH / 2 - 20), 210 - y[row] * 130];
  const shapes = members.flatMap((e, k) => {
    const rows = Array.from({ length: Math.min(t, rollout.lengths[e] - 1) + 1 }, (_, i) => rollout.first[e] + i);
    const [cx, cy] = at(rows.at(-1));
    const turn = (-angle[rows.at(-1)] * 180) / Math.PI;
    return [
      svg("polyline", { points: rows.map((row) => at(row).join(",")).join(" "), fill: "none", stroke: colour(k), "stroke-width": 1.5, opacity: 0.7 }),
      svg("path", { d: "M-7,5 L-4,-5 L4,-5 L7,5 Z", transform: `translate(${cx},${cy}) rotate(${turn})`, fill: colour(k) }),
    ];
  });
  const ground = svg("line", { x1: 0, x2: WIDTH, y1: 214, y2: 214, stroke: "currentColor", opacity: 0.5 });
  const pad = svg("line", { x1: WIDTH / 2 - 46, x2: WIDTH / 2 + 46, y1: 214, y2: 214, stroke: "#E69F00", "stroke-width": 4 });
  return [ground, pad, ...shapes];
}

function queues(rollout, members, t) {
  const servers = rollout.observations.length;
  const work = (column, row) => Math.expm1(column[row]); // in hundreds of units
  const most = Math.max(1, ...rollout.observations.flatMap((column) => Array.from(column, (_, row) => work(column, row)).filter((_, row) => members.includes(rollout.episode[row]))));
  const [slot, thin] = [(WIDTH - 20) / servers, (WIDTH - 20) / servers / (members.length + 1)];
  const bars = rowsAt(rollout, members, t).flatMap((row, k) => rollout.observations.map((column, server) => {
    const height = 190 * Math.sqrt(work(column, row) / most);
    return svg("rect", { x: 10 + server * slot + k * thin, y: 210 - height, width: Math.max(thin - 1, 1), height, fill: colour(k) });
  }));
  const labels = rollout.observations.map((_, server) => {
    const text = svg("text", { x: 10 + (server + 0.45) * slot, y: 226, "text-anchor": "middle", "font-size": 11, fill: "currentColor" });
    text.textContent = server + 1;
    return text;
  });
  return [svg("line", { x1: 10, x2: WIDTH - 10, y1: 210, y2: 210, stroke: "currentColor", opacity: 0.5 }), ...bars, ...labels];
}

function lines(rollout, members, t) {
  const column = rollout.observations[0];
  const [low, high] = [Math.min(...column), Math.max(...column)];
  const at = (row, time) => [10 + (time / rollout.maxLength) * (WIDTH - 20), 225 - ((column[row] - low) / (high - low || 1)) * 210];
  return members.map((e, k) => {
    const n = Math.min(t, rollout.lengths[e] - 1) + 1;
    const points = Array.from({ length: n }, (_, time) => at(rollout.first[e] + time, time).join(",")).join(" ");
    return svg("polyline", { points, fill: "none", stroke: colour(k), "stroke-width": 2 });
  });
}

const DRAWINGS = { cartpole, lander, queues, lines };
const SAYS = {
  cartpole: "Carts and poles of all members at this step; faint where a member has ended.",
  lander: "Paths of all members up to this step; the pad is the thick line.",
  queues: "Work waiting at each of the ten servers (1 is the slowest), one bar per member; heights go with the square root.",
  lines: "The first component of the observation, up to this step.",
};

export function stage(rollout, members, t, title) {
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "stage", role: "img", "aria-label": `${title}. ${SAYS[rollout.draw]}` });
  picture.append(...DRAWINGS[rollout.draw](rollout, members, t));
  return el("div", {}, picture, el("p", { class: "note" }, SAYS[rollout.draw]));
}

// What is drawn of an episode over its steps, and what it is called.
export function traceOf(rollout, episode) {
  const rows = Array.from({ length: rollout.lengths[episode] }, (_, i) => rollout.first[episode] + i);
  const [a, b] = rollout.observations;
  switch (rollout.draw) {
    case "cartpole": return { x: rows.map((_, i) => i), y: rows.map((row) => a[row]), names: ["step", "cart position"] };
    case "lander": return { x: rows.map((row) => a[row]), y: rows.map((row) => b[row]), names: ["x", "y"] };
    case "queues": return {
      x: rows.map((_, i) => i), names: ["step", "work waiting"],
      y: rows.map((row) => rollout.observations.reduce((sum, column) => sum + 100 * Math.expm1(column[row]), 0)),
    };
    default: return { x: rows.map((_, i) => i), y: rows.map((row) => a[row]), names: ["step", rollout.observationNames[0]] };
  }
}
