// How much of the loss each group gets, and what that does to the gradient: sb_grpo/extras/group_weights.py.

import { isByTask } from "./grouping.js";
import { episodeReturns } from "./maths.js";
import { mean, segmentCount, segmentMean, segmentStd, segmentSum } from "./segments.js";

// How much of the newest rollout enters the averages of returns.
const FAST = 0.5;
const SLOW = 0.1;
const MAX_WEIGHT = 10;
const TINY = 2.2250738585072014e-308;

// Kinds that make sense: what is followed over time needs labels that last, and the memory that a training leaves behind.
export function kindsOf(rollout, settings) {
  const lasting = settings.grouping !== "seed";
  return ["none", "balanced", ...(lasting ? ["performance"] : []), ...(rollout.weighting && isByTask(settings) ? ["adaptive"] : [])];
}

// Weight of each row, so that every label gets its share of the loss; with mean 1, none above maxWeight times the mean.
export function rowWeights(shares, label, maxWeight = MAX_WEIGHT) {
  const rows = segmentCount(label, shares.length);
  const total = shares.reduce((sum, share, k) => sum + (rows[k] > 0 ? share : 0), 0);
  const weights = Float64Array.from(label, (k) => Math.min((shares[k] / total) * (label.length / Math.max(rows[k], 1)), maxWeight));
  const centre = mean(weights);
  return weights.map((w) => w / centre);
}

// Averages of each label's returns after this rollout; a label that is new begins with what it has here.
export function observed(memory, returns, labels, n) {
  const here = segmentCount(labels, n);
  const [means, stds] = [segmentMean(returns, labels, n), segmentStd(returns, labels, n)];
  const seen = Array.from(here, (count, k) => count > 0 || Boolean(memory?.seen[k]));
  const follow = (name, values, share) => Array.from(values, (value, k) => {
    if (here[k] === 0) return memory?.[name][k] ?? 0;
    return memory?.seen[k] ? memory[name][k] + share * (value - memory[name][k]) : value;
  });
  return { fast: follow("fast", means, FAST), slow: follow("slow", means, SLOW), spread: follow("spread", stds, SLOW), seen };
}

// What a label that was never seen counts as: the average of the others.
const filled = (values, seen, otherwise) => {
  const known = values.filter((_, k) => seen[k]);
  return values.map((x, k) => (seen[k] ? x : known.length ? mean(known) : otherwise));
};

// More for what lags: shares proportional to exp(-score / temperature), scores between the worst and the best label.
export function performanceShares({ fast, seen }, temperature) {
  const known = fast.filter((_, k) => seen[k]);
  const [low, high] = known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
  const scores = filled(fast.map((x) => Math.min(Math.max((x - low) / Math.max(high - low, 1e-12), 0), 1)), seen, 0.5);
  const least = Math.min(...scores);
  const raw = scores.map((x) => Math.exp(-(x - least) / temperature));
  const total = raw.reduce((a, b) => a + b, 0);
  return raw.map((x) => x / total);
}

// Progress: how far the returns' fast average is from the slow one, in standard deviations.
export function progressOf({ fast, slow, spread, seen }) {
  return filled(fast.map((x, k) => Math.abs(x - slow[k]) / (spread[k] + 1e-3 * Math.abs(x) + 1e-12)), seen, 0);
}

// More for what changes: a floor for all, and the rest in proportion to the progress.
export function adaptiveShares(progress, floor) {
  const n = progress.length;
  const total = progress.reduce((a, b) => a + b, 0);
  return progress.map((p) => (total > 0 ? floor / n + ((1 - floor) * p) / Math.max(total, TINY) : 1 / n));
}

// Wanted share of each label, the weight of each row that comes of it, and the progress that "adaptive" goes by.
export function weightsOf(result, settings) {
  const { rollout, labels, rowLabel, names } = result;
  const n = names.length;
  const rows = segmentCount(rowLabel, n);
  if (settings.weights === "none" || !kindsOf(rollout, settings).includes(settings.weights)) {
    return { shares: Array.from(rows, (count) => count / rowLabel.length), weights: new Float64Array(rowLabel.length).fill(1), progress: null };
  }
  if (settings.weights === "balanced") {
    const shares = Array(n).fill(1 / n);
    return { shares, weights: rowWeights(shares, rowLabel), progress: null };
  }
  // By task: all tasks have their place in the memory, also those that this rollout has no episode of.
  const byTask = isByTask(settings);
  const of = byTask ? rollout.task : labels;
  const memory = observed(byTask ? rollout.weighting : null, episodeReturns(rollout, 1), of, byTask ? rollout.tasks.length : n);
  const progress = settings.weights === "adaptive" ? progressOf(memory) : null;
  const all = progress ? adaptiveShares(progress, settings.floor) : performanceShares(memory, settings.temperature);
  const present = byTask ? [...new Set(of)].sort((a, b) => a - b) : all.map((_, k) => k);
  const shares = present.map((k) => all[k]);
  return { shares, weights: rowWeights(shares, rowLabel), progress: progress && present.map((k) => progress[k]) };
}

// What each label does to the gradient: its share of the weighted |A|, of clipped rows, and the size of its part.
export function impact(result, settings) {
  const { rollout, advantages, rowLabel, names } = result;
  const { shares, weights, progress } = weightsOf(result, settings);
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
    wanted: shares, progress, weights, share: size.map((x) => x / total), clipped: segmentMean(clipped, rowLabel, n),
    norm: norms.map(Math.sqrt), rows: segmentCount(rowLabel, n),
  };
}
