// Who is compared with whom: sb_grpo/extras/grouping.py.

import { ESTIMATORS, episodeReturns } from "./maths.js";
import { mean, quantile, segmentCount, segmentMean, segmentStd, segmentSum, unique } from "./segments.js";

export const GROUPINGS = ["seed", "task", "difficulty", "length", "auto", "hierarchical"];
export const isByTask = (settings) => ["task", "hierarchical"].includes(settings.grouping) && !settings.labels;
const TINY = 2.2250738585072014e-308;

// What an episode looks like, by name.
export function episodeFeatures(rollout) {
  const n = rollout.group.length;
  const features = {
    "return": segmentSum(rollout.rewards, rollout.episode, n),
    "length": segmentCount(rollout.episode, n),
    "mean reward": segmentMean(rollout.rewards, rollout.episode, n),
    "spread of rewards": segmentStd(rollout.rewards, rollout.episode, n),
  };
  rollout.observations.forEach((column, k) => {
    features[`mean of ${rollout.observationNames[k]}`] = segmentMean(column, rollout.episode, n);
    features[`spread of ${rollout.observationNames[k]}`] = segmentStd(column, rollout.episode, n);
  });
  return features;
}

export function byQuantile(values, n) {
  const bounds = Array.from({ length: n - 1 }, (_, i) => quantile(values, (i + 1) / n));
  return Int32Array.from(values, (x) => bounds.filter((bound) => bound < x).length);
}

// Lloyd's k-means from far-apart first centres; every iteration is kept, for the picture of how clusters form.
export function kMeans(points, k, iterations = 12) {
  const distance = (a, b) => a.reduce((sum, x, i) => sum + (x - b[i]) ** 2, 0);
  const nearest = (p, centres) => centres.reduce((best, c, i) => (distance(p, c) < distance(p, centres[best]) ? i : best), 0);
  const centres = [points[0]];
  while (centres.length < Math.min(k, points.length)) {
    const far = points.map((p) => Math.min(...centres.map((c) => distance(p, c))));
    centres.push(points[far.indexOf(Math.max(...far))]);
  }
  const frames = [];
  let current = centres.map((c) => [...c]);
  for (let i = 0; i < iterations; i++) {
    const labels = points.map((p) => nearest(p, current));
    frames.push({ centres: current, labels });
    const next = current.map((c, j) => {
      const own = points.filter((_, p) => labels[p] === j);
      return own.length ? c.map((_, d) => mean(own.map((p) => p[d]))) : c;
    });
    if (next.every((c, j) => distance(c, current[j]) < 1e-18)) break;
    current = next;
  }
  return frames;
}

// Standardised columns; one that does not vary tells nothing.
export function standardised(columns) {
  const n = columns[0].length;
  const scaled = columns.map((column) => {
    const centre = mean(column);
    const spread = Math.sqrt(mean(column.map((x) => (x - centre) ** 2)));
    return Array.from(column, (x) => (x - centre) / (spread > 1e-6 * Math.abs(centre) ? spread : 1));
  });
  return Array.from({ length: n }, (_, e) => scaled.map((column) => column[e]));
}

export function clusters(rollout, settings) {
  const features = episodeFeatures(rollout);
  const chosen = settings.features?.length ? settings.features : ["return", "length"];
  return kMeans(standardised(chosen.map((name) => features[name])), settings.n);
}

// One label per episode.
export function labelsOf(rollout, settings) {
  if (settings.labels) return Int32Array.from(settings.labels);
  const n = rollout.group.length;
  switch (settings.grouping) {
    case "seed": return rollout.seedGroup;
    case "difficulty": return byQuantile(episodeReturns(rollout, 1), settings.n);
    case "length": return byQuantile(segmentCount(rollout.episode, n), settings.n);
    case "auto": return Int32Array.from(clusters(rollout, settings).at(-1).labels);
    default: return Int32Array.from(rollout.task);
  }
}

// Divide by the root mean square of the label's advantages, rows that are exactly 0 not counted.
export function toOneScale(advantages, label, n) {
  const rows = segmentSum(advantages.map((x) => (x !== 0 ? 1 : 0)), label, n);
  const squares = segmentSum(advantages.map((x) => x * x), label, n);
  const size = squares.map((sum, k) => Math.max(Math.sqrt(sum / Math.max(rows[k], 1)), TINY));
  return advantages.map((x, i) => x / size[label[i]]);
}

// Labels, groups and advantages of a rollout under the reader's settings.
export function analyse(rollout, settings) {
  const labels = labelsOf(rollout, settings);
  const keepsSeeds = ["seed", "hierarchical"].includes(settings.grouping) && !settings.labels;
  const { present, place } = unique(labels);
  const regrouped = keepsSeeds ? rollout : { ...rollout, group: place, nGroups: present.length };
  const byTask = isByTask(settings);
  const found = ESTIMATORS[settings.estimator](regrouped, { ...settings, byTask });
  const rowLabel = Int32Array.from(rollout.episode, (e) => place[e]);
  const advantages = settings.grouping === "hierarchical" && byTask
    ? toOneScale(found.advantages, rowLabel, present.length) : found.advantages;
  return { ...found, advantages, rollout: regrouped, labels: place, names: present.map((l) => nameOf(l, rollout, settings)), rowLabel };
}

function nameOf(label, rollout, settings) {
  if (["task", "hierarchical"].includes(settings.grouping)) return rollout.tasks[label] ?? `task ${label}`;
  return { seed: "seed", difficulty: "quantile", length: "quantile", auto: "cluster" }[settings.grouping] + ` ${label + 1}`;
}
