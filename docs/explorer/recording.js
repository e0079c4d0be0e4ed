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
  try {
    return toRollout(document);
  } catch (error) {
    throw new BadRecording(`${name} lacks something that a recording holds (${error.message}). Record it again with python -m zoo.record.`);
  }
}

const numbers = (column) => Float64Array.from(column, (x) => x ?? NaN);

function toRollout(document) {
  const { episodes, steps } = document;
  const lengths = episodes.length;
  const total = lengths.reduce((a, b) => a + b, 0);
  for (const [name, column] of [["rewards", steps.reward], ["values", steps.value], ["ratios", steps.ratio]]) {
    if (column.length !== total) throw new Error(`${column.length} ${name} for ${total} steps`);
  }
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
