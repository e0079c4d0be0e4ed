// Advantages of a recorded rollout, by the formulas of sb_grpo/maths: a test compares the numbers with Python's.
//
// Every estimator returns, beside the advantages, what they are made of: the page fills these into the formulas.

import { mean, segmentCount, segmentMean, segmentMedian, segmentStd, segmentSum, std } from "./segments.js";
import { pairedOut } from "./pairing.js";

export const SPREAD_TOLERANCE = 1e-5;
export const RESIDUAL_TOLERANCE = 1e-3;
export const LONGEST_HORIZON = 100;
const TINY = 2.2250738585072014e-308;

const map = (values, f) => Float64Array.from(values, f);
const isLast = (r, i) => i === r.rewards.length - 1 || r.episode[i + 1] !== r.episode[i];

// Solve y_t = x_t + decay_t y_{t+1} backwards in time by doubling, in the library's order of operations: what is 0 there but for
// rounding is so here.
export function linearRecurrence(x, decay, maxLength) {
  const [y, d] = [Float64Array.from(x), Float64Array.from(decay)];
  for (let shift = 1; shift < maxLength; shift *= 2) {
    const n = y.length - shift;
    for (let i = 0; i < n; i++) y[i] += d[i] * y[i + shift]; // ascending: y[i + shift] is still the old one
    for (let i = 0; i < n; i++) d[i] *= d[i + shift];
    d.fill(0, Math.max(n, 0));
  }
  return y;
}

// G_t: the discounted sum of the rewards of the episode from each step on.
export function rewardsToGo(rollout, rewards, gamma) {
  return linearRecurrence(rewards, map(rewards, (_, i) => (isLast(rollout, i) ? 0 : gamma)), rollout.maxLength);
}

export function episodeReturns(rollout, gamma) {
  const toGo = rewardsToGo(rollout, rollout.rewards, gamma);
  return Float64Array.from(rollout.first, (i) => toGo[i]);
}

// Generalised advantage estimation under the recorded values (arXiv 1506.02438, eq. 16), and its one-step errors.
export function gae(rollout, gamma, lambda) {
  const { rewards, values, finalValues, terminated, episode } = rollout;
  const delta = map(rewards, (reward, i) => {
    const ends = terminated[episode[i]] ? 0 : finalValues[episode[i]];
    return reward + gamma * (isLast(rollout, i) ? ends : values[i + 1]) - values[i];
  });
  const decay = map(rewards, (_, i) => (isLast(rollout, i) ? 0 : gamma * lambda));
  return { delta, own: linearRecurrence(delta, decay, rollout.maxLength) };
}

// What the peers lead one to expect of each value: "mean" (itself included), "leave_one_out" or "median".
export function peerBaseline(values, key, n, kind) {
  if (kind === "median") {
    const medians = segmentMedian(values, key, n);
    return map(values, (_, i) => medians[key[i]]);
  }
  const [total, count] = [segmentSum(values, key, n), segmentCount(key, n)];
  return map(values, (x, i) => {
    const k = key[i];
    if (kind === "mean") return total[k] / count[k];
    return count[k] > 1 ? (total[k] - x) / (count[k] - 1) : x;
  });
}

function baselineOf(values, group, n, kind) {
  return kind === "global" ? values.map(() => mean(values)) : peerBaseline(values, group, n, kind);
}

// Divide by the spread; what belongs to a group without one becomes 0.
export function scale(centred, spreadOf, sizeOf, group, n, normalize, tolerance = SPREAD_TOLERANCE) {
  const spread = segmentStd(spreadOf, group, n);
  const size = segmentMean(map(sizeOf, (x) => x * x), group, n).map(Math.sqrt);
  const alive = Array.from(spread, (s, k) => s > tolerance * size[k]);
  const batch = alive.some(Boolean) ? Math.max(std(spreadOf.filter((_, i) => alive[group[i]])), TINY) : 1;
  const divisor = { group: (k) => Math.max(spread[k], TINY), batch: () => batch, none: () => 1 }[normalize];
  return {
    advantages: map(centred, (x, i) => (alive[group[i]] ? x / divisor(group[i]) : 0)),
    divisor: map(centred, (_, i) => divisor(group[i])),
    alive,
  };
}

function outcome(rollout, options) {
  const { group, nGroups, episode } = rollout;
  const returns = episodeReturns(rollout, options.gamma);
  const baseline = baselineOf(returns, group, nGroups, options.baseline);
  const centred = map(returns, (x, i) => x - baseline[i]);
  const scaled = scale(centred, returns, returns, group, nGroups, options.normalize);
  const ofRows = (x) => map(episode, (e) => x[e]);
  return {
    target: ofRows(returns), baseline: ofRows(baseline), centred: ofRows(centred),
    divisor: ofRows(scaled.divisor), advantages: ofRows(scaled.advantages), alive: scaled.alive,
  };
}

function process(rollout, options) {
  const { rewards, episode, group, nGroups } = rollout;
  const rowGroup = Int32Array.from(episode, (e) => group[e]);
  let baseline;
  if (options.baseline === "leave_one_out") {
    const [total, count] = [segmentSum(rewards, rowGroup, nGroups), segmentCount(rowGroup, nGroups)];
    const [own, ownCount] = [segmentSum(rewards, episode, group.length), segmentCount(episode, group.length)];
    baseline = map(rewards, (_, i) => {
      const [g, e] = [rowGroup[i], episode[i]];
      return count[g] > ownCount[e] ? (total[g] - own[e]) / (count[g] - ownCount[e]) : own[e] / ownCount[e];
    });
  } else {
    baseline = baselineOf(rewards, rowGroup, nGroups, options.baseline);
  }
  const centred = map(rewards, (x, i) => x - baseline[i]);
  const scaled = scale(centred, rewards, rewards, rowGroup, nGroups, options.normalize);
  return {
    target: rewards, baseline, centred, divisor: scaled.divisor, normalised: scaled.advantages,
    advantages: rewardsToGo(rollout, scaled.advantages, options.gamma), alive: scaled.alive,
  };
}

function step(rollout, options) {
  const { t, episode, group, nGroups, maxLength: horizon } = rollout;
  const toGo = rewardsToGo(rollout, rollout.rewards, options.gamma);
  const rowGroup = Int32Array.from(episode, (e) => group[e]);
  const all = options.baseline === "global";
  const key = map(t, (time, i) => (all ? 0 : rowGroup[i] * horizon) + time);
  const nKeys = all ? horizon : nGroups * horizon;
  const members = segmentCount(group, nGroups);
  const [values, keys] = [[...toGo], [...key]];
  if (options.ended === "zero") {
    const present = segmentCount(key, nKeys);
    for (let k = 0; k < nKeys; k++) {
      const ended = (all ? group.length : members[Math.floor(k / horizon)]) - present[k];
      for (let j = 0; j < ended; j++) { values.push(0); keys.push(k); }
    }
  }
  const baseline = peerBaseline(values, keys, nKeys, all ? "mean" : options.baseline).slice(0, toGo.length);
  const centred = map(toGo, (x, i) => x - baseline[i]);
  return { target: toGo, baseline, centred, ...scale(centred, centred, toGo, rowGroup, nGroups, options.normalize) };
}

// z-scores within the group or the batch.
export function centreAndScale(residuals, targets, rollout, options) {
  const whole = options.normalize === "batch";
  if (options.normalize === "none") {
    const zero = map(residuals, () => 0);
    return { advantages: residuals, centre: zero, divisor: zero.map(() => 1), alive: Array(rollout.nGroups).fill(true) };
  }
  const rowGroup = Int32Array.from(rollout.episode, (e) => (whole ? 0 : rollout.group[e]));
  const n = whole ? 1 : rollout.nGroups;
  const means = segmentMean(residuals, rowGroup, n);
  const oneOverHorizon = Math.max(1 - options.gamma, 1 / rollout.maxLength);
  const tolerance = RESIDUAL_TOLERANCE * Math.min(1, LONGEST_HORIZON * oneOverHorizon);
  const centred = map(residuals, (x, i) => x - means[rowGroup[i]]);
  const scaled = scale(centred, residuals, targets, rowGroup, n, "group", tolerance);
  const alive = whole ? Array(rollout.nGroups).fill(scaled.alive[0]) : scaled.alive;
  return { ...scaled, alive, centre: map(residuals, (_, i) => means[rowGroup[i]]) };
}

function stateOf(rollout, options) {
  const { delta, own } = gae(rollout, options.gamma, options.lambda);
  const target = map(own, (x, i) => x + rollout.values[i]);
  const pairs = options.paired ? pairedOut(own, rollout) : null;
  const residual = pairs ? pairs.after : own;
  const scaled = centreAndScale(residual, target, rollout, options);
  return { target, baseline: rollout.values, delta, own, centred: residual, pairs, ...scaled };
}

// One fit per task where the groups are tasks: each is then judged by itself.
function state(rollout, options) {
  if (!options.byTask) return stateOf(rollout, options);
  const columns = ["target", "baseline", "delta", "own", "centred", "advantages", "centre", "divisor"];
  const out = Object.fromEntries(columns.map((name) => [name, new Float64Array(rollout.rewards.length)]));
  out.alive = Array(rollout.nGroups).fill(false);
  out.pairs = options.paired ? { c: new Float64Array(rollout.rewards.length), peers: new Float64Array(rollout.rewards.length), n: new Float64Array(rollout.rewards.length) } : null;
  for (const task of new Set(rollout.task)) {
    const { part, rows, groups } = selectEpisodes(rollout, (e) => rollout.task[e] === task);
    const found = stateOf(part, options);
    rows.forEach((row, i) => {
      for (const name of columns) out[name][row] = found[name][i];
      if (out.pairs) for (const name of ["c", "peers", "n"]) out.pairs[name][row] = found.pairs[name][i];
    });
    groups.forEach((group, k) => { out.alive[group] = found.alive[k]; });
  }
  return out;
}

export const ESTIMATORS = { outcome, process, step, state };

// Some episodes as a rollout of their own, with the rows and groups of the larger one that it holds.
export function selectEpisodes(rollout, wanted) {
  const episodes = Array.from(rollout.group.keys()).filter(wanted);
  const place = new Map(episodes.map((e, i) => [e, i]));
  const rows = Array.from(rollout.episode.keys()).filter((i) => place.has(rollout.episode[i]));
  const groups = [...new Set(episodes.map((e) => rollout.group[e]))].sort((a, b) => a - b);
  const ofRows = (column) => Float64Array.from(rows, (i) => column[i]);
  const ofEpisodes = (column) => Float64Array.from(episodes, (e) => column[e]);
  const part = {
    ...rollout,
    rewards: ofRows(rollout.rewards), values: ofRows(rollout.values), t: ofRows(rollout.t),
    episode: Int32Array.from(rows, (i) => place.get(rollout.episode[i])),
    group: Int32Array.from(episodes, (e) => groups.indexOf(rollout.group[e])), nGroups: groups.length,
    seedGroup: ofEpisodes(rollout.seedGroup), task: ofEpisodes(rollout.task),
    terminated: ofEpisodes(rollout.terminated), finalValues: ofEpisodes(rollout.finalValues),
  };
  return { part, rows, groups };
}
