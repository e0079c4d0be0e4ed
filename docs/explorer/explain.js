// The formula of one step's advantage with its numbers filled in.

import { number } from "./dom.js";
import { stretch } from "./pairing.js";

const BASELINES = { mean: "mean of", leave_one_out: "mean of the others in", median: "median of", global: "mean of all, not only of" };

// Lines of text for a row of the rollout.
export function explain(result, settings, row) {
  const { rollout } = result;
  const episode = rollout.episode[row];
  const group = rollout.group[episode];
  const head = `Episode ${episode + 1}, step ${rollout.t[row]}, ${result.names[result.labels[episode]]}`;
  if (!result.alive[group]) return [head, "This group has no spread: there is nothing to compare, every advantage is 0."];
  const lines = { outcome, process, step, state }[settings.estimator](result, settings, row, group);
  if (settings.grouping === "hierarchical") lines.push(`then every task is brought to one scale: A = ${number(result.advantages[row])}`);
  return [head, ...lines];
}

function divided(result, settings, row, value) {
  const over = { group: "spread of the group", batch: "spread of the rollout", none: "not divided" }[settings.normalize];
  return settings.normalize === "none"
    ? `A = ${number(value)}   (${over})`
    : `A = ${number(value)} / ${number(result.divisor[row])} = ${number(value / result.divisor[row])}   (${over})`;
}

function outcome(result, settings, row) {
  return [
    `R = ${number(result.target[row])}   (discounted return of the episode, the same for all of its steps)`,
    `b = ${number(result.baseline[row])}   (${BASELINES[settings.baseline]} the group)`,
    `R - b = ${number(result.centred[row])}`,
    divided(result, settings, row, result.centred[row]),
  ];
}

function process(result, settings, row) {
  return [
    `r = ${number(result.target[row])}   (reward of this step)`,
    `b = ${number(result.baseline[row])}   (${BASELINES[settings.baseline]} the group's step rewards)`,
    `normalised reward = ${number(result.normalised[row])}`,
    `A = sum of the normalised rewards from here on, discounted by ${settings.gamma} = ${number(result.advantages[row])}`,
  ];
}

function step(result, settings, row) {
  return [
    `G = ${number(result.target[row])}   (rewards from here on, discounted)`,
    `b = ${number(result.baseline[row])}   (${BASELINES[settings.baseline]} the group, at step ${result.rollout.t[row]})`,
    `G - b = ${number(result.centred[row])}`,
    divided(result, settings, row, result.centred[row]),
  ];
}

function state(result, settings, row) {
  const { rollout } = result;
  const lines = [
    `V = ${number(rollout.values[row])}   (what earlier episodes lead one to expect of this state)`,
    `delta = r + gamma V' - V = ${number(rollout.rewards[row])} + gamma V' - ${number(rollout.values[row])} = ${number(result.delta[row])}`,
    `residual = sum of (gamma lambda)^k delta_k = ${number(result.own[row])}`,
  ];
  if (result.pairs) {
    const { c, peers, n } = result.pairs;
    lines.push(n[row] > 0
      ? `peers at this step: ${n[row]}, their mean ${number(peers[row])} above their level, c = ${number(c[row])} (stretch ${stretch(rollout.t[row]) + 1})`
      : "no peer has reached this step: nothing to subtract");
    if (n[row] > 0) lines.push(`paired = ${number(result.own[row])} - ${number(c[row])} x ${number(peers[row])} = ${number(result.centred[row])}`);
  }
  if (settings.normalize !== "none") lines.push(`minus its mean: ${number(result.centred[row])} - ${number(result.centre[row])} = ${number(result.centred[row] - result.centre[row])}`);
  lines.push(divided(result, settings, row, result.centred[row] - result.centre[row]));
  return lines;
}
