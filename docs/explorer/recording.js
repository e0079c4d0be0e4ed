// A recording of python -m zoo.record: checked, and turned into columns. docs/recordings.md describes the file.

export const FORMAT = "sb_grpo.rollout";
export const VERSION = 1;

export const RECORDINGS = [
  { id: "cartpole", name: "CartPole", file: "data/cartpole.json" },
  { id: "lunarlander", name: "LunarLander", file: "data/lunarlander.json" },
  { id: "loadbalancing", name: "Load balancing", file: "data/loadbalancing.json" },
  { id: "tasks", name: "Four CartPole tasks", file: "data/tasks.json" },
];

// A sentence for the reader.
export class BadRecording extends Error {}

export function parse(text, name) {
  let document;
  try {
    document = JSON.parse(text);
  } catch {
    throw new BadRecording(`${name} is cut or no JSON file. Record it again with python -m zoo.record.`);
  }
  if (document?.format !== FORMAT) throw new BadRecording(`${name} is not a recording of python -m zoo.record.`);
  if (document.version !== VERSION) {
    throw new BadRecording(`${name} has version ${document.version} of the format; this page reads version ${VERSION}. Record it again.`);
  }
  const wrong = faults(document);
  if (wrong.length) {
    throw new BadRecording(`${name} lacks something that a recording holds (${wrong[0]}). Record it again with python -m zoo.record.`);
  }
  return toRollout(document);
}

// Ways to draw an env, and how many components of the observation each needs.
const DRAWN = { cartpole: 4, lander: 5, queues: 1, lines: 1 };
const isNumber = (x) => typeof x === "number";
const isOne = (x) => x === null || isNumber(x);
const isIndex = (x) => Number.isInteger(x) && x >= 0;
const isList = (x, n, fine = isOne) => Array.isArray(x) && (n === null || x.length === n) && x.every(fine);

// What is wrong with a document, in words; nothing where it is a recording.
function faults({ draw, settings, tasks, observation_names: names, episodes, steps, conflicts, history, weighting }) {
  const wrong = [];
  const need = (fine, words) => { if (!fine) wrong.push(words); };
  need(draw in DRAWN, `draw is none of ${Object.keys(DRAWN).join(", ")}`);
  for (const name of ["gamma", "gae_lambda", "clip_range"]) need(isNumber(settings?.[name]), `settings.${name} is no number`);
  need(isList(tasks, null, (x) => typeof x === "string"), "tasks is no list of names");
  const lengths = isList(episodes?.length, null, (x) => isIndex(x) && x > 0) ? episodes.length : [];
  need(lengths.length > 0, "episodes.length is no list of steps");
  for (const name of ["group", "task"]) need(isList(episodes?.[name], lengths.length, isIndex), `episodes.${name} has no number for each episode`);
  for (const name of ["terminated", "final_value"]) need(isList(episodes?.[name], lengths.length), `episodes.${name} has no number for each episode`);
  const total = lengths.reduce((a, b) => a + b, 0);
  for (const [name, plural] of [["reward", "rewards"], ["value", "values"], ["ratio", "ratios"]]) {
    need(isList(steps?.[name], total), `${steps?.[name]?.length ?? 0} ${plural} for ${total} steps`);
  }
  for (const name of ["observation", "action", "score"]) need(steps?.[name]?.length > 0 && isList(steps[name], null, (x) => isList(x, total)), `steps.${name} has no columns of ${total} steps`);
  need(isList(names, steps?.observation?.length ?? 0, (x) => typeof x === "string"), "observation_names has no name for each component");
  need((steps?.observation?.length ?? 0) >= (DRAWN[draw] ?? 1), `${draw} needs ${DRAWN[draw]} components of the observation`);
  const labels = conflicts?.labels?.length ?? 0;
  need(isList(conflicts?.labels, labels, (x) => typeof x === "string") && isList(conflicts.cosines, labels, (x) => isList(x, labels)), "conflicts is no square of numbers");
  const rollouts = history?.steps?.length ?? 0;
  const columns = history?.columns ?? null;
  need(isList(history?.steps, rollouts) && columns !== null && typeof columns === "object" && Object.values(columns).every((x) => isList(x, rollouts)), "history has no columns of its steps");
  const followed = ["fast", "slow", "spread", "seen"].every((name) => isList(weighting?.[name], tasks?.length ?? 0));
  need(weighting == null || followed, "weighting has no number for each task");
  return wrong;
}

const numbers = (column) => Float64Array.from(column, (x) => x ?? NaN);

function toRollout(document) {
  const { episodes, steps } = document;
  const lengths = episodes.length;
  const total = lengths.reduce((a, b) => a + b, 0);
  const first = lengths.map((_, e) => lengths.slice(0, e).reduce((a, b) => a + b, 0));
  const episode = new Int32Array(total);
  const t = new Int32Array(total);
  lengths.forEach((length, e) => {
    for (let i = 0; i < length; i++) { episode[first[e] + i] = e; t[first[e] + i] = i; }
  });
  const group = Int32Array.from(episodes.group);
  return {
    env: document.env, draw: document.draw, settings: document.settings, tasks: document.tasks,
    observationNames: document.observation_names, history: document.history, conflicts: document.conflicts,
    weighting: document.weighting ?? null,
    rewards: numbers(steps.reward), values: numbers(steps.value), ratio: numbers(steps.ratio),
    observations: steps.observation.map(numbers), actions: steps.action.map(numbers), scores: steps.score.map(numbers),
    episode, t, first, lengths, group, seedGroup: group, task: Int32Array.from(episodes.task),
    terminated: episodes.terminated, finalValues: numbers(episodes.final_value),
    nGroups: Math.max(...group) + 1, maxLength: Math.max(...lengths),
  };
}
