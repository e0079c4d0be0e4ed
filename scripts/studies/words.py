"""GRPO for words: outcome GRPO with groups of 8, REINFORCE with the batch's mean, PPO with a value head or a critic network.

usage: python -m scripts.studies.words [--tasks chain_sum ...] [--methods grpo ...] [--seeds 0 1 ...]
       python -m scripts.studies.words --search    learning rates on seed 100, as many for every method
       python -m scripts.studies.words --memory    peak memory of one update, a process per method
       python -m scripts.studies.words --report    write the tables into docs/words.md

All methods of a seed begin with the same weights after a supervised start from the env's expert, and see the same number of
tokens. Runs on disk (docs/studies/data/words.jsonl) are kept: a study that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from sb_grpo import GRPO, AdvantageOptions, Estimate, Features, Rollout
from sb_grpo.maths.estimators import centre_and_scale
from sb_grpo.maths.returns import gae
from sb_grpo.maths.segments import segment_mean, segment_sum
from sb_grpo.policies.causal_lm import CausalLMPolicy, encode, lengths_of, make_lm, whole_histories
from sb_grpo.tasks.text.tokens import demonstrate, imitate
from scripts.studies.common import records
from scripts.studies.common.compared import markdown, middle
from scripts.studies.common.runs import DATA, DOCS
from scripts.studies.common.tables import put_between
from zoo.common.provenance import commit, versions

FILE = DATA / "words.jsonl"
#: Kinds of records, beside those of the study.
MEMORY = "memory"
SEARCH = "search"
#: Names of a run. The first two seeds (size "small") had one learning rate for all methods.
KEY = ("size", "task", "method", "seed", "steps", "rate")
SIZE = "mixed"
STARTS = Path("build") / "words"
N_ENVS = 128
TEST_ENVS = 64
TEST_SEED = 2_000_000
EXPERT_SEED = 1_000_000
TEST_EPISODES = 512
#: Groups of 8 that the share of variance between questions is estimated from.
N_GROUPS = 64


def llama(hidden: int, layers: int) -> dict[str, Any]:
    """Settings of a Llama with heads of 16 and up to 32 numbers."""
    return dict(
        model_type="llama",
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=max(4, hidden // 32),
        tie_word_embeddings=True,
    )


LM = llama(64, 2)


class Task(NamedTuple):
    """Questions of mixed difficulty, the supervised start, and the budget."""

    settings: dict[str, Any]  #: of reasoning-gym's generator
    words: str  #: for the table
    context: int
    max_tokens: int
    n_shown: int  #: demonstrations
    n_imitated: int  #: gradient steps of the supervised start
    steps: int  #: tokens of the training


TASKS = {
    "chain_sum": Task(dict(max_digits=1, max_terms=3), "2 or 3 numbers below 10", 13, 5, 2_000, 500, 24_000),
    "countdown": Task(
        dict(min_numbers=2, max_numbers=3, max_value=9, min_target=1, max_target=30),
        "2 or 3 numbers below 10",
        28,
        14,
        1_000,
        400,
        20_000,
    ),
    "spell_backward": Task(dict(max_word_len=9), "3 to 9 letters", 21, 11, 1_000, 500, 24_000),
    "word_sorting": Task(
        dict(min_words=2, max_words=3, min_word_length=3, max_word_length=3),
        "2 or 3 words of 3 letters",
        40,
        16,
        1_000,
        500,
        40_000,
    ),
    "mini_sudoku": Task(dict(min_empty=1, max_empty=4), "1 to 4 empty cells", 64, 32, 1_000, 700, 48_000),
    "maze": Task(
        dict(min_dist=1, max_dist=6, min_grid_size=5, max_grid_size=5), "5 x 5, 1 to 6 steps", 42, 3, 1_000, 400, 12_000
    ),
}
#: A minibatch is a rollout: of some 128 answers.
SETTINGS: dict[str, Any] = dict(gamma=1.0, n_epochs=2, batch_size=8192, max_grad_norm=1.0, device="cpu")


class Critic(nn.Module):
    """Values by a head on the policy's hidden states, or by a language model of the critic's own.

    The head's error does not reach the policy's trunk; the own model learns as a whole.

    :param features_dim: size of a hidden state
    :param lm: settings of the own model with ``n_tokens`` and ``context``; None: a head alone
    """

    uses_values, whole_episodes = True, False

    def __init__(self, features_dim: int, lm: dict[str, Any] | None) -> None:
        super().__init__()
        self.lm = None if lm is None else make_lm(lm["lm"], lm["n_tokens"], lm["context"])
        self.head = nn.Sequential(nn.Linear(features_dim, 64), nn.Tanh(), nn.Linear(64, 1))
        self.optimizer = th.optim.Adam(self.parameters(), lr=1e-3 if lm is None else 3e-4)

    def values(self, features: th.Tensor, tokens: th.Tensor) -> th.Tensor:
        """Compute values, ``[n]``.

        :param features: ``[n, features_dim]`` of the policy
        :param tokens: ``[n, context]``
        """
        if self.lm is not None:
            whole, of = whole_histories(tokens.long())
            hidden = encode(self.lm, whole, output_hidden_states=True).hidden_states[-1]
            features = hidden[of, lengths_of(tokens) - 1]
        return self.head(features).squeeze(1)  # type: ignore[no-any-return]

    def estimate(self, rollout: Rollout, options: AdvantageOptions, features: Features | None, objective: int = 0) -> Estimate:
        """Estimate advantages by GAE, then fit the values to the lambda-returns in four passes."""
        assert features is not None
        observations: Any = rollout.observations
        final_observations: Any = rollout.final_observations
        with th.no_grad():
            values = self.values(features.steps, observations)
            final = self.values(features.final, final_observations.clamp(min=0))
        advantages = gae(rollout, values, final, options.gamma, options.gae_lambda)
        targets = advantages + values
        for _ in range(4):
            for rows in (rollout.episode * 4 // len(rollout.group) == k for k in range(4)):  # whole episodes
                self.optimizer.zero_grad()
                error = self.values(features.steps[rows], observations[rows]) - targets[rows]
                error.square().mean().backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
        return Estimate(centre_and_scale(advantages, targets, rollout, options))


class WithCritic:
    """Settings of a critic; ``build`` knows the size of the features."""

    uses_values, whole_episodes, needs_other_members = True, False, False

    def __init__(self, lm: dict[str, Any] | None = None) -> None:
        self.lm = lm

    def build(self, features_dim: int, n_tasks: int, n_objectives: int) -> Critic:
        """Build the critic of a model."""
        return Critic(features_dim, self.lm)


class Method(NamedTuple):
    """One method of the study."""

    words: str  #: for the tables
    rate: float  #: of :data:`RATES`: the highest mean success of the search
    arguments: dict[str, Any]


def batch_mean(rollout: Rollout, options: AdvantageOptions) -> th.Tensor:
    """Return of the episode less the batch's mean, over the batch's spread; groups without a spread count, too."""
    returns = segment_sum(rollout.rewards, rollout.episode, len(rollout.group))
    return ((returns - returns.mean()) / returns.std().clamp(min=1e-8))[rollout.episode]


METHODS = {
    "grpo": Method("GRPO, `outcome`, G = 8", 4e-4, dict(advantage="outcome", group_size=8)),
    "reinforce": Method(
        "REINFORCE, mean of the batch",
        4e-4,
        dict(advantage="outcome", advantage_kwargs=dict(baseline="global"), group_size=1, normalize_advantage="batch"),
    ),
    "ppo": Method("PPO, value head on the trunk", 4e-4, dict(group_size=1)),
    "ppo-own": Method("PPO, critic of its own", 4e-4, dict(group_size=1)),
    "reinforce-8": Method("REINFORCE, 8 answers to a question", 4e-4, dict(advantage=batch_mean, group_size=8)),
}
COMPARED = ("grpo", "reinforce", "ppo")
RATES = (1e-4, 2e-4, 4e-4)
SEARCHED = ("chain_sum", "countdown")
SEARCH_SEED = 100


def env_kwargs(task: str) -> dict[str, Any]:
    """Arguments of the env of a task."""
    of = TASKS[task]
    return {"dataset": task, "settings": of.settings, "context": of.context, "max_tokens": of.max_tokens}


def make_model(
    task: str,
    method: str,
    lm: dict[str, Any],
    seed: int,
    n_envs: int = N_ENVS,
    n_episodes: int = 128,
    **changes: Any,
) -> GRPO:
    """Build the model of a run; a rollout has about as many episodes with every method."""
    env = make_vec_env("ReasoningGym-v0", n_envs, seed=seed, env_kwargs=env_kwargs(task))
    arguments = {"learning_rate": METHODS[method].rate, **SETTINGS, **METHODS[method].arguments, **changes}
    if method.startswith("ppo"):
        context = env.observation_space.shape[0]  # type: ignore[index]
        own = dict(lm=lm, n_tokens=int(env.action_space.n), context=context)  # type: ignore[attr-defined]
        arguments["advantage"] = WithCritic(own if method == "ppo-own" else None)
    n_groups = n_episodes // arguments["group_size"]
    return GRPO(CausalLMPolicy, env, policy_kwargs=dict(lm=lm), n_groups=n_groups, seed=seed, **arguments)


@cache
def test_env(task: str) -> VecEnv:
    """Envs of the questions of a test, which are seeded before it."""
    return make_vec_env("ReasoningGym-v0", TEST_ENVS, env_kwargs=env_kwargs(task))


def success(model: GRPO, task: str) -> tuple[float, float]:
    """Share of right answers to questions that no training has seen by their seed: drawn, and most likely, answers."""
    test = test_env(task)
    shares = []
    for deterministic in (False, True):
        test.seed(TEST_SEED)
        th.manual_seed(TEST_SEED)
        returns, _ = evaluate_policy(model, test, TEST_EPISODES, deterministic=deterministic, return_episode_rewards=True)
        shares.append(float(np.mean(np.array(returns) >= 1.0)))
    return shares[0], shares[1]


def between_questions(model: GRPO) -> float:
    """Share of the variance of returns that lies between questions: what a baseline per question could remove."""
    rollout = model.collect()
    assert rollout is not None
    returns = segment_sum(rollout.rewards, rollout.episode, len(rollout.group))
    within = returns - segment_mean(returns, rollout.group, rollout.n_groups)[rollout.group]
    size = len(returns) / rollout.n_groups
    return float(1.0 - within.square().mean() * size / (size - 1) / returns.var())


def start_of(model: GRPO, task: str, seed: int) -> dict[str, float]:
    """Give a model the weights of the supervised start, which is made once per task and seed; return its success."""
    file = STARTS / f"{task}_{seed}.pt"
    if not file.exists():
        th.manual_seed(seed)
        np.random.seed(seed)
        shown = demonstrate(gym.make("ReasoningGym-v0", **env_kwargs(task)), TASKS[task].n_shown, EXPERT_SEED)
        learner = make_model(task, "grpo", LM, EXPERT_SEED, n_episodes=8 * N_GROUPS)
        learner.policy.load_state_dict(model.policy.state_dict())
        imitate(learner.policy, shown, TASKS[task].n_imitated, batch_size=32, learning_rate=3e-3)
        drawn, likeliest = success(learner, task)
        found = {"before": drawn, "before_greedy": likeliest, "between": round(between_questions(learner), 3)}
        file.parent.mkdir(parents=True, exist_ok=True)
        th.save({"weights": learner.policy.state_dict(), "found": found}, file)
    kept = th.load(file)
    model.policy.load_state_dict(kept["weights"])
    return dict(kept["found"])


class Curve(BaseCallback):
    """Records tokens, processor time, and success of the last 100 episodes, after each rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = time.process_time()
        self.rows: list[list[float]] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        model: Any = self.model
        seconds = round(time.process_time() - self.begun, 2)
        self.rows.append([self.num_timesteps, seconds, round(float(np.mean(model.ep_success_buffer)), 3)])


def train(task: str, method: str, size: str, seed: int, steps: int, rate: float) -> dict[str, Any]:
    """Train one method with one seed."""
    th.set_num_threads(1)
    model = make_model(task, method, LM, seed, learning_rate=rate)
    before = start_of(model, task, seed)
    model.set_random_seed(seed)
    curve = Curve()
    model.learn(steps, callback=curve)
    seconds = time.process_time() - curve.begun
    drawn, likeliest = success(model, task)
    return {
        "task": task,
        "method": method,
        "size": size,
        "seed": seed,
        "steps": steps,
        "rate": rate,
        "env_steps": model.num_timesteps,
        "gradient_steps": max(int(state["step"]) for state in model.policy.optimizer.state.values()),
        "parameters": sum(p.numel() for p in model.policy.parameters()),
        **before,
        "sampled": drawn,
        "greedy": likeliest,
        "cpu_s": round(seconds, 1),
        "curve": curve.rows,
        "commit": commit(),
        "versions": versions(),
    }


# ---------------------------------------------------------------- memory


#: Smaller minibatches than the study's, as usual for models that fill a memory.
IN_MEMORY: dict[str, Any] = dict(n_envs=64, batch_size=256)


def peak_memory(method: str, hidden: int, layers: int) -> dict[str, Any]:
    """Measure the peak of the resident memory of one rollout and update, above that of the imports; for a fresh process."""
    th.set_num_threads(1)
    make_model("chain_sum", method, llama(16, 1), 0)  # imports all that is needed
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    before = pages * resource.getpagesize()
    model = make_model("chain_sum", method, llama(hidden, layers), 0, **IN_MEMORY)
    rollout = model.collect()
    assert rollout is not None
    model.update(rollout._replace(rewards=th.linspace(-1, 1, len(rollout.rewards))))  # random answers earn nothing
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    weights = sum(p.numel() for p in model.policy.parameters())
    place = {"size": MEMORY, "task": "chain_sum", "method": method, "seed": 0, "steps": 0, "rate": 0}
    return {**place, "parameters": weights, "peak_mb": round(peak / 1e6), "copies": round(peak / (4 * weights), 1)}


def measure_memory(hidden: int, layers: int) -> None:
    """Measure every method in a process of its own."""
    for method in (*COMPARED, "ppo-own"):
        command = [sys.executable, "-m", "scripts.studies.words", "--measure", method, str(hidden), str(layers)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        records.put(FILE, found, *KEY, "parameters")
        print(found, flush=True)


# ---------------------------------------------------------------- tables


def runs_of(size: str, task: str, method: str, rate: float | None = None) -> dict[int, dict[str, Any]]:
    """Runs with the present settings, by seed."""
    wanted = (size, task, method, TASKS[task].steps, rate or METHODS[method].rate)
    found = [run for run in records.read(FILE) if tuple(run.get(name) for name in KEY if name != "seed") == wanted]
    return {run["seed"]: run for run in found}


def in_training(run: dict[str, Any], seconds: float) -> float:
    """Success of the episodes in the last three rollouts before a processor time; a record is of 100 episodes."""
    return float(np.mean([row[2] for row in run["curve"] if row[1] <= seconds][-3:]))


def learning_table() -> str:
    """Success, steps and processor time, by task and method; differences by seed, from one start."""
    rows = []
    gains_of: dict[str, list[float]] = {}
    for task in TASKS:
        runs = {method: found for method in METHODS if (found := runs_of(SIZE, task, method))}
        ours = runs.get("grpo", {})
        for method, found in runs.items():
            shared = sorted(seed for seed in found if seed in ours)
            gains = np.array([ours[seed]["sampled"] - found[seed]["sampled"] for seed in shared])
            gains_of[method] = [*gains_of.get(method, []), *gains]
            others = [runs[name] for name in COMPARED if name in runs]
            at_once = np.array([
                in_training(found[seed], min(other[seed]["cpu_s"] for other in others if seed in other)) for seed in shared
            ])  # fmt: skip
            numbers = {name: np.array([run[name] for run in found.values()]) for name in ("sampled", "greedy", "before")}
            rows.append([
                task, METHODS[method].words, str(len(found)), f"{numbers['before'].mean():.2f}", middle(numbers["sampled"]),
                "" if method == "grpo" else middle(gains), middle(numbers["greedy"]), middle(at_once),
                *(f"{np.median([run[name] for run in found.values()]):,.0f}{unit}"
                  for name, unit in (("gradient_steps", ""), ("cpu_s", " s"))),
            ])  # fmt: skip
    for method in COMPARED[1:]:
        gains = np.array(gains_of.get(method, []))
        rows.append(["all runs", METHODS[method].words, str(len(gains)), "", "", middle(gains), "", "", "", ""])
    heads = ["task", "method", "seeds", "start", "success, drawn", "GRPO less this", "most likely"]
    return markdown([*heads, "in training, at equal processor time", "gradient steps", "processor"], rows)


def task_table() -> str:
    """Questions, budgets and starts."""
    rows = []
    for name, task in TASKS.items():
        starts = list(runs_of(SIZE, name, "grpo").values())
        kinds = ("before", "before_greedy", "between")
        shares = [f"{np.mean([run[kind] for run in starts]):.2f}" if starts else "" for kind in kinds]
        length = [f"{task.steps:,}", f"{task.n_shown:,}", str(task.n_imitated)]
        rows.append([name, task.words, *length, *shares])
    heads = ["task", "questions", "tokens", "demonstrations", "steps of the start"]
    return markdown([*heads, "start, drawn", "start, most likely", "variance between questions"], rows)


def search_table() -> str:
    """Success of one seed by learning rate."""
    rows = []
    for method in COMPARED:
        for task in SEARCHED:
            found = [runs_of(SEARCH, task, method, rate).get(SEARCH_SEED) for rate in RATES]
            rows.append([METHODS[method].words, task, *("" if run is None else f"{run['sampled']:.2f}" for run in found)])
    return markdown(["method", "task", *(f"{rate:g}" for rate in RATES)], rows)


def memory_table() -> str:
    """Peak memory of one rollout and update, by method."""
    found = [run for run in records.read(FILE) if run["size"] == MEMORY]
    rows = []
    for run in sorted(found, key=lambda run: (run["parameters"], list(METHODS).index(run["method"]))):
        own = [r["peak_mb"] for r in found if (r["method"], r["parameters"]) == ("ppo-own", run["parameters"])]
        share = f"{run['peak_mb'] / own[0]:.2f}" if own else ""
        millions = f"{run['parameters'] / 1e6:.1f} M"
        rows.append([METHODS[run["method"]].words, millions, f"{run['peak_mb']:,} MB", f"{run['copies']:.1f}", share])
    return markdown(["method", "parameters", "peak", "copies of the weights", "of PPO's with a critic of its own"], rows)


def report() -> None:
    """Write the tables into the page."""
    page = DOCS / "words.md"
    text = page.read_text()
    tables = {"words": learning_table(), "tasks of words": task_table(), "search of words": search_table()}
    for name, made in {**tables, "memory of words": memory_table()}.items():
        text = put_between(text, name, made)
    page.write_text(text)


def wanted_runs(args: argparse.Namespace) -> list[tuple[str, str, str, int, float]]:
    """Task, method, size, seed and rate of the runs that a command line asks for; a seed after the other."""
    if args.search:
        return [(task, m, SEARCH, SEARCH_SEED, rate) for task in SEARCHED for rate in RATES for m in COMPARED]
    return [(task, m, SIZE, seed, METHODS[m].rate) for seed in args.seeds for task in args.tasks for m in args.methods]


def main() -> None:
    """Execute the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(COMPARED))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--memory", nargs="*", type=int, help="measure memory, of a model with this hidden size and layers")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    if args.measure is not None:
        method, hidden, layers = args.measure
        print(json.dumps(peak_memory(method, int(hidden), int(layers))))
    elif args.memory is not None:
        measure_memory(*(args.memory or (384, 6)))
    elif not args.report:
        for run in wanted_runs(args):
            run_missing(*run)
    if args.report:
        report()


def run_missing(task: str, method: str, size: str, seed: int, rate: float) -> None:
    """Train, unless the run is on disk."""
    if seed in runs_of(size, task, method, rate):
        return
    result = train(task, method, size, seed, TASKS[task].steps, rate)
    records.put(FILE, result, *KEY, "parameters")
    print({name: result[name] for name in (*KEY, "before", "between", "sampled", "greedy", "cpu_s")}, flush=True)


if __name__ == "__main__":
    main()
