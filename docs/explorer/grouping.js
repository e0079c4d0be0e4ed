// Who is compared with whom: sb_grpo/extras/grouping.py, and weights as in sb_grpo/extras/group_weights.py.

import { ESTIMATORS, episodeReturns } from "./maths.js";
import { mean, quantile, segmentCount, segmentMean, segmentStd, segmentSum, unique } from "./segments.js";

export const GROUPINGS = ["seed", "task", "difficulty", "length", "auto", "hierarchical"];
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
  const byTask = ["task", "hierarchical"].includes(settings.grouping) && !settings.labels;
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

// Weight of each row, so that every label gets its share of the loss; with mean 1, none above maxWeight times the mean.
export function rowWeights(shares, label, maxWeight = 10) {
  const rows = segmentCount(label, shares.length);
  const total = shares.reduce((sum, share, k) => sum + (rows[k] > 0 ? share : 0), 0);
  const weights = Float64Array.from(label, (k) => Math.min((shares[k] / total) * (label.length / Math.max(rows[k], 1)), maxWeight));
  const centre = mean(weights);
  return weights.map((w) => w / centre);
}

// More for what lags: shares proportional to exp(-score / temperature), scores between the worst and the best label.
export function performanceShares(returns, temperature = 0.5) {
  const [low, high] = [Math.min(...returns), Math.max(...returns)];
  const raw = Array.from(returns, (x) => Math.exp(-Math.min(Math.max((x - low) / Math.max(high - low, 1e-12), 0), 1) / temperature));
  const total = raw.reduce((a, b) => a + b, 0);
  return raw.map((x) => x / total);
}

export function weightsOf(result, kind) {
  const { rollout, labels, rowLabel, names } = result;
  if (kind === "none") return new Float64Array(rowLabel.length).fill(1);
  const n = names.length;
  const returns = segmentMean(episodeReturns(rollout, 1), labels, n);
  return rowWeights(kind === "balanced" ? Array(n).fill(1 / n) : performanceShares(returns), rowLabel);
}

// What each label does to the gradient: its share of the weighted |A|, of clipped rows, and the size of its part.
export function impact(result, kind) {
  const { rollout, advantages, rowLabel, names } = result;
  const weights = weightsOf(result, kind);
  const n = names.length;
  const size = segmentSum(advantages.map((a, i) => Math.abs(a) * weights[i]), rowLabel, n);
  const total = size.reduce((a, b) => a + b, 0) || 1;
  const clip = rollout.settings.clip_range;
  const clipped = advantages.map((a, i) => ((a > 0 && rollout.ratio[i] > 1 + clip) || (a < 0 && rollout.ratio[i] < 1 - clip) ? 1 : 0));
  const norms = new Float64Array(n);
  for (const score of rollout.scores) {
    const part = segmentSum(score.map((s, i) => s * advantages[i] * weights[i]), rowLabel, n);
    part.forEach((x, k) => { norms[k] += (x / advantages.length) ** 2; });
  }
  return {
    share: size.map((x) => x / total), clipped: segmentMean(clipped, rowLabel, n),
    norm: norms.map(Math.sqrt), rows: segmentCount(rowLabel, n),
  };
}
