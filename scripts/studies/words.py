"""GRPO for words: outcome GRPO with groups of 8, REINFORCE with the batch's mean, PPO with a value head or a critic network.

usage: python -m scripts.studies.words [--tasks chain_sum ...] [--seeds 0 1 ...] [--steps N] [--size small|full]
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
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from torch import nn

from sb_grpo import GRPO, AdvantageOptions, Estimate, Features, Rollout
from sb_grpo.maths.estimators import centre_and_scale
from sb_grpo.maths.returns import gae
from sb_grpo.policies.causal_lm import CausalLMPolicy, encode, lengths_of, make_lm, whole_histories
from sb_grpo.tasks.text.questions import TASKS
from sb_grpo.tasks.text.tokens import demonstrate, imitate
from scripts.studies.common import records
from scripts.studies.common.compared import markdown
from scripts.studies.common.runs import DATA, DOCS
from scripts.studies.common.tables import put_between
from zoo.common.provenance import commit, versions

FILE = DATA / "words.jsonl"
#: Size of the records of memory.
MEMORY = "memory"
#: Names of a run.
KEY = ("size", "task", "method", "seed", "steps")
STARTS = Path("build") / "words"
N_ENVS = 64
TEST_SEED = 2_000_000
EXPERT_SEED = 1_000_000
TEST_EPISODES = 256


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


#: Model, demonstrations, gradient steps of the supervised start, and tokens of the training.
SIZES: dict[str, dict[str, Any]] = {
    "small": dict(lm=llama(64, 2), n_shown=500, n_imitated=200, steps=20_000),
    "full": dict(lm=llama(192, 4), n_shown=2_000, n_imitated=500, steps=300_000),
}
#: Of the env, by dataset: short histories keep the study cheap.
ENVS: dict[str, dict[str, Any]] = {
    "chain_sum": dict(settings=dict(max_digits=1), context=12, max_tokens=6),
    "spell_backward": dict(settings=dict(max_word_len=5), context=16, max_tokens=8),
}
SETTINGS: dict[str, Any] = dict(gamma=1.0, n_epochs=2, batch_size=256, learning_rate=2e-4, max_grad_norm=1.0, device="cpu")


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


#: Method -> its name in the tables, and its arguments.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("GRPO, `outcome`, G = 8", dict(advantage="outcome", group_size=8)),
    "reinforce": (
        "REINFORCE, mean of the batch",
        dict(advantage="outcome", advantage_kwargs=dict(baseline="global"), group_size=1, normalize_advantage="batch"),
    ),
    "ppo": ("PPO, value head on the trunk", dict(group_size=1)),
    "ppo-own": ("PPO, critic of its own", dict(group_size=1)),
}


def make_model(task: str, method: str, lm: dict[str, Any], seed: int) -> GRPO:
    """Build the model of a run; a rollout has about 128 episodes with every method."""
    kwargs = dict(dataset=task, **ENVS.get(task, {}))
    env = make_vec_env("ReasoningGym-v0", N_ENVS, seed=seed, env_kwargs=kwargs)
    arguments = {**SETTINGS, **METHODS[method][1]}
    if method.startswith("ppo"):
        context = env.observation_space.shape[0]  # type: ignore[index]
        own = dict(lm=lm, n_tokens=int(env.action_space.n), context=context)  # type: ignore[attr-defined]
        arguments["advantage"] = WithCritic(own if method == "ppo-own" else None)
    n_groups = 128 // arguments["group_size"]
    return GRPO(CausalLMPolicy, env, policy_kwargs=dict(lm=lm), n_groups=n_groups, seed=seed, **arguments)


def success(model: GRPO, deterministic: bool) -> float:
    """Share of right answers to questions that no training has seen by their seed."""
    env = model.get_env()
    assert env is not None
    test = make_vec_env("ReasoningGym-v0", N_ENVS, seed=TEST_SEED, env_kwargs=env.get_attr("spec")[0].kwargs)
    returns, _ = evaluate_policy(model, test, TEST_EPISODES, deterministic=deterministic, return_episode_rewards=True)
    return float(np.mean(np.array(returns) >= 1.0))


def start_of(model: GRPO, task: str, size: str, seed: int) -> float:
    """Give a model the weights of the supervised start, which is made once per task, size and seed; return its success."""
    file = STARTS / f"{task}_{size}_{seed}.pt"
    if not file.exists():
        scale = SIZES[size]
        th.manual_seed(seed)
        np.random.seed(seed)
        shown = demonstrate(gym.make("ReasoningGym-v0", dataset=task, **ENVS.get(task, {})), scale["n_shown"], EXPERT_SEED)
        imitate(model.policy, shown, scale["n_imitated"], batch_size=32, learning_rate=3e-3 if size == "small" else 1e-3)
        file.parent.mkdir(parents=True, exist_ok=True)
        th.save({"weights": model.policy.state_dict(), "success": success(model, False)}, file)
    kept = th.load(file)
    model.policy.load_state_dict(kept["weights"])
    return float(kept["success"])


def train(task: str, method: str, size: str, seed: int, steps: int) -> dict[str, Any]:
    """Train one method with one seed."""
    th.set_num_threads(1)
    model = make_model(task, method, SIZES[size]["lm"], seed)
    before = start_of(model, task, size, seed)
    model.set_random_seed(seed)
    begun = time.process_time()
    model.learn(steps)
    seconds = time.process_time() - begun
    return {
        "task": task,
        "method": method,
        "size": size,
        "seed": seed,
        "steps": steps,
        "env_steps": model.num_timesteps,
        "parameters": sum(p.numel() for p in model.policy.parameters()),
        "before": before,
        "sampled": success(model, False),
        "greedy": success(model, True),
        "cpu_s": round(seconds, 1),
        "commit": commit(),
        "versions": versions(),
    }


# ---------------------------------------------------------------- memory


def peak_memory(method: str, hidden: int, layers: int) -> dict[str, Any]:
    """Measure the peak of the resident memory of one rollout and update, above that of the imports; for a fresh process."""
    th.set_num_threads(1)
    make_model("chain_sum", method, llama(16, 1), 0)  # imports all that is needed
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    before = pages * resource.getpagesize()
    model = make_model("chain_sum", method, llama(hidden, layers), 0)
    rollout = model.collect()
    assert rollout is not None
    model.update(rollout._replace(rewards=th.linspace(-1, 1, len(rollout.rewards))))  # random answers earn nothing
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    weights = sum(p.numel() for p in model.policy.parameters())
    place = {"size": MEMORY, "task": "chain_sum", "method": method, "seed": 0, "steps": 0}
    return {**place, "parameters": weights, "peak_mb": round(peak / 1e6), "copies": round(peak / (4 * weights), 1)}


def measure_memory(hidden: int, layers: int) -> None:
    """Measure every method in a process of its own."""
    for method in METHODS:
        command = [sys.executable, "-m", "scripts.studies.words", "--measure", method, str(hidden), str(layers)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        records.put(FILE, found, *KEY, "parameters")
        print(found, flush=True)


# ---------------------------------------------------------------- tables


def learning_table() -> str:
    """Success, steps and processor time, by task and method."""
    found = [run for run in records.read(FILE) if run["size"] != MEMORY]
    rows = []
    for size, task, steps in sorted({(run["size"], run["task"], run["steps"]) for run in found}):
        for method, (name, _) in METHODS.items():
            runs = [r for r in found if (r["size"], r["task"], r["steps"], r["method"]) == (size, task, steps, method)]
            if runs:
                before = np.mean([run["before"] for run in runs])
                answers = [", ".join(f"{run[kind]:.2f}" for run in runs) for kind in ("sampled", "greedy")]
                seconds = f"{np.median([run['cpu_s'] for run in runs]):.0f} s"
                seeds = f"{len(runs)}"
                rows.append([task, name, seeds, f"{steps:,}", f"{before:.2f}", *answers, seconds])
    heads = [
        "task",
        "method",
        "seeds",
        "tokens",
        "start (mean)",
        "success, drawn, by seed",
        "most likely, by seed",
        "processor",
    ]
    return markdown(heads, rows)


def memory_table() -> str:
    """Peak memory of one rollout and update, by method."""
    found = [run for run in records.read(FILE) if run["size"] == MEMORY]
    rows = []
    for run in sorted(found, key=lambda run: (run["parameters"], list(METHODS).index(run["method"]))):
        own = [r["peak_mb"] for r in found if (r["method"], r["parameters"]) == ("ppo-own", run["parameters"])]
        share = f"{run['peak_mb'] / own[0]:.2f}" if own else ""
        millions = f"{run['parameters'] / 1e6:.1f} M"
        rows.append([METHODS[run["method"]][0], millions, f"{run['peak_mb']:,} MB", f"{run['copies']:.1f}", share])
    return markdown(["method", "parameters", "peak", "copies of the weights", "of PPO's with a critic of its own"], rows)


def report() -> None:
    """Write the tables into the page."""
    page = DOCS / "words.md"
    text = put_between(page.read_text(), "words", learning_table())
    page.write_text(put_between(text, "memory of words", memory_table()))


def main() -> None:
    """Execute the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=["chain_sum", "spell_backward"])
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=["grpo", "reinforce", "ppo"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--size", choices=list(SIZES), default="small")
    parser.add_argument("--steps", type=int, help="tokens of a training; default: by size")
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
        steps = args.steps or SIZES[args.size]["steps"]
        for seed in args.seeds:
            for task in args.tasks:
                for method in args.methods:
                    run_missing(task, method, args.size, seed, steps)
    if args.report:
        report()


def run_missing(task: str, method: str, size: str, seed: int, steps: int) -> None:
    """Train, unless the run is on disk."""
    wanted = [size, task, method, seed, steps]
    if any([run[name] for name in KEY] == wanted for run in records.read(FILE)):
        return
    result = train(task, method, size, seed, steps)
    records.put(FILE, result, *KEY, "parameters")
    print({name: result[name] for name in (*KEY, "before", "sampled", "greedy", "cpu_s")}, flush=True)


if __name__ == "__main__":
    main()
