// What the peers at the same step of the same seed have in common, taken out: sb_grpo/baselines/paired.py.
//
// As in a first rollout: nothing is remembered from rollouts before.

import { mean, segmentCount, segmentSum, unique } from "./segments.js";

const STRETCHES = 8;
const FIRST_STRETCH = 8;

export const stretch = (t) => Math.min(Math.floor(Math.log2(t / FIRST_STRETCH + 1)), STRETCHES - 1);

// Mean residual of the other groups, shrunk by what would be chance.
export function levelOfOthers(own, place, nGroups) {
  const others = nGroups - 1;
  if (others < 2) return own.map(() => 0);
  const count = segmentCount(place, nGroups);
  const means = segmentSum(own, place, nGroups).map((sum, g) => sum / count[g]);
  const total = means.reduce((a, b) => a + b, 0);
  const squares = means.reduce((a, b) => a + b * b, 0);
  const shrunk = means.map((m) => {
    const level = (total - m) / others;
    const error = Math.max((squares - m * m) / others - level ** 2, 0) / (others - 1);
    const kept = level * Math.max(1 - error / level ** 2, 0);
    return Number.isNaN(kept) ? 0 : kept;
  });
  return Float64Array.from(place, (g) => shrunk[g]);
}

// Rows, and rows times the correlation of two members, from sums over rows.
function correlated([count, own, peers, product, square]) {
  const rows = Math.max(count, 1);
  const centre = own / rows;
  const variance = square / rows - centre ** 2;
  const known = variance > Number.EPSILON * centre ** 2;
  const common = known ? (product / rows - (centre * peers) / rows) / variance : 0;
  return [known ? count : 0, count * Math.min(Math.max(common, -1), 1)];
}

// c(n) for every row, from all groups but its own.
function coefficients(own, peers, n, place, nGroups, t) {
  const shift = mean(own);
  const sums = Array.from({ length: nGroups * STRETCHES }, () => [0, 0, 0, 0, 0]);
  own.forEach((value, i) => {
    if (n[i] === 0) return;
    const [x, m] = [value - shift, peers[i] - shift];
    const part = sums[place[i] * STRETCHES + stretch(t[i])];
    [1, x, m, x * m, x * x].forEach((term, k) => { part[k] += term; });
  });
  const whole = Array.from({ length: STRETCHES }, (_, s) => {
    const total = [0, 0, 0, 0, 0];
    for (let g = 0; g < nGroups; g++) sums[g * STRETCHES + s].forEach((x, k) => { total[k] += x; });
    return total;
  });
  const correlation = sums.map((part, i) => {
    const [rows, common] = correlated(whole[i % STRETCHES].map((x, k) => x - part[k]));
    return common / Math.max(rows, 1);
  });
  return own.map((_, i) => {
    const luck = Math.max(correlation[place[i] * STRETCHES + stretch(t[i])], 0);
    return luck > 0 ? luck / (luck + (1 - luck) / Math.max(n[i], 1)) : 0;
  });
}

export function pairedOut(own, rollout) {
  const { present, place: ofEpisode } = unique(rollout.seedGroup);
  const place = Int32Array.from(rollout.episode, (e) => ofEpisode[e]);
  const level = levelOfOthers(own, place, present.length);
  const levelled = own.map((x, i) => x - level[i]);
  const horizon = rollout.maxLength;
  const key = Int32Array.from(place, (g, i) => g * horizon + rollout.t[i]);
  const total = segmentSum(levelled, key, present.length * horizon);
  const count = segmentCount(key, present.length * horizon);
  const n = own.map((_, i) => count[key[i]] - 1);
  const peers = levelled.map((x, i) => (n[i] > 0 ? (total[key[i]] - x) / n[i] : 0));
  const c = coefficients(own, peers.map((x, i) => x + level[i]), n, place, present.length, rollout.t);
  return { after: own.map((x, i) => (n[i] > 0 ? x - c[i] * peers[i] : x)), c, peers, n };
}
