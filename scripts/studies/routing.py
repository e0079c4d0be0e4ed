"""Tours by ``"SetPolicy"`` against the optimum: greedy, all starts, best of 64.

usage: python -m scripts.studies.routing [--cities 20] [--minutes 10] [--seed 0] [--lr 1e-3] [--batch-groups 4] [--report]

The training ends after so many processor minutes, and the learning rate falls to 5 % of its first value until then. It is
saved once per processor minute, and a run that was stopped goes on from there, with other instances. The
optimum of each of the 100 instances is proven by CP-SAT, and kept. Runs on disk are kept:
``docs/studies/data/scheduling/TSP-20.jsonl``, one line per setting and decoding. The table goes into ``docs/scheduling.md``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback

from sb_grpo import GRPO
from sb_grpo.tasks.instances import Cities
from sb_grpo.tasks.routing import TSP
from sb_grpo.tasks.solving import by_model, cp_sat, play
from scripts.studies.common import records
from scripts.studies.common.compared import markdown
from scripts.studies.common.tables import put_between
from scripts.studies.scheduling import DATA, EVALUATION, PAGE

#: Decoding -> (attempts per instance, each begins in another city, decode of ``by_model``).
DECODINGS: dict[str, tuple[int, bool, str]] = {
    "greedy": (1, False, "greedy"),
    "all starts": (0, True, "greedy"),
    "best of 64": (64, False, "sample"),
}
N_GROUPS = 16
#: Layers of the encoder: it runs once per instance, the decoder once per step of every tour.
N_LAYERS = 3
KEY = ("method", "seed", "minutes", "lr", "batch_groups")


class Clock(BaseCallback):
    """Ends the training after some processor time, and gives the learning rate of the time that is left.

    :param minutes: processor minutes
    :param lr: first learning rate
    :param file: of the weights and the optimiser, written once per processor minute
    """

    def __init__(self, minutes: float, lr: float, file: Path) -> None:
        super().__init__()
        self.limit = 60 * minutes
        self.lr = lr
        self.file = file
        self.begun = time.process_time()
        self.saved = self.begun

    @property
    def share(self) -> float:
        """Share of the time that has passed."""
        return (time.process_time() - self.begun) / self.limit

    def rate(self, _: float) -> float:
        """Learning rate now."""
        return self.lr * max(1.0 - self.share, 0.05)

    def _on_step(self) -> bool:
        return self.share < 1.0

    def _on_rollout_start(self) -> None:
        if time.process_time() > self.saved + 60:
            self.saved = time.process_time()
            policy = self.model.policy
            weights = [policy.state_dict(), policy.optimizer.state_dict()]
            self.file.parent.mkdir(parents=True, exist_ok=True)
            th.save([self.saved - self.begun, self.model.num_timesteps, *weights], self.file)

    def go_on(self, model: GRPO) -> None:
        """Take up a training that was stopped."""
        if self.file.exists():
            passed, model.num_timesteps, weights, optimizer = th.load(self.file)
            self.begun -= passed
            assert model.seed is not None
            model.set_random_seed(model.seed + model.num_timesteps)
            model.policy.load_state_dict(weights)
            model.policy.optimizer.load_state_dict(optimizer)


def lengths(model: GRPO, n: int, decoding: str) -> np.ndarray:
    """``[instances]`` lengths of the best tours."""
    members, multi_start, decode = DECODINGS[decoding]
    env = TSP(len(EVALUATION), n, multi_start=multi_start)
    th.manual_seed(0)
    with th.no_grad():
        played = play(env, env.instance(EVALUATION), by_model(env, model, decode), members or n)
    best: np.ndarray = played.cost.amin(dim=1).numpy()
    return best


def optimum(n: int) -> np.ndarray:
    """``[instances]`` proven shortest lengths."""
    file = DATA / f"TSP-{n}.jsonl"
    kept = [row for row in records.read(file) if row["method"] == "optimum"]
    if not kept:
        begun = time.process_time()
        places = TSP(1, n).instance(EVALUATION).double().numpy()
        found = cp_sat([Cities(str(i), xy) for i, xy in enumerate(places)], seconds=30.0)
        if not all(one.optimal for one in found):
            raise RuntimeError("CP-SAT has not proven every optimum: give it more seconds.")
        row = {"method": "optimum", "seed": 0, "minutes": 0, "lr": 0, "batch_groups": 0}
        costs = [round(one.cost, 6) for one in found]
        kept = [{**row, "env_steps": 0, "cpu": round(time.process_time() - begun, 1), "costs": costs}]
        records.put(file, kept[0], *KEY)
    return np.array(kept[0]["costs"])


def run(n: int, minutes: float, seed: int, lr: float, batch_groups: int) -> None:
    """Train, and keep the lengths."""
    clock = Clock(minutes, lr, Path("logs") / f"TSP-{n}-{minutes:g}-{seed}-{lr:g}-{batch_groups}.pt")
    model = GRPO(
        "SetPolicy", TSP(N_GROUPS * n, n, multi_start=True), group_size=n, n_groups=N_GROUPS, advantage="outcome",
        gamma=1.0, learning_rate=clock.rate, n_epochs=1, batch_size=batch_groups * n * (n - 1), normalize_advantage="batch",
        seed=seed, device="cpu", policy_kwargs={"n_layers": N_LAYERS},
    )  # fmt: skip
    clock.go_on(model)
    model.learn(10**9, callback=clock, reset_num_timesteps=False)
    setting = {"seed": seed, "minutes": minutes, "lr": lr, "batch_groups": batch_groups}
    done = {"env_steps": model.num_timesteps, "cpu": round(60 * minutes * clock.share, 1)}
    for decoding in DECODINGS:
        costs = [round(float(x), 6) for x in lengths(model, n, decoding)]
        records.put(DATA / f"TSP-{n}.jsonl", {"method": decoding, **setting, **done, "costs": costs}, *KEY)


def table(n: int) -> str:
    """Mean gaps to the optimum, in percent, per setting."""
    rows: list[dict[str, Any]] = [row for row in records.read(DATA / f"TSP-{n}.jsonl") if row["method"] != "optimum"]
    best = optimum(n)
    settings = dict.fromkeys(tuple(row[name] for name in KEY[1:]) for row in rows)
    lines = []
    for setting in sorted(settings, key=lambda one: one[1]):
        mine = {row["method"]: row for row in rows if tuple(row[name] for name in KEY[1:]) == setting}
        seed, minutes, lr, batch_groups = setting
        gaps = [f"{100 * np.mean(np.array(mine[name]['costs']) / best - 1):.2f}" for name in DECODINGS]
        steps = mine["greedy"]["env_steps"]
        lines.append([f"{minutes:g}", f"{lr:g}", str(batch_groups), str(seed), f"{steps:,}", *gaps])
    heads = ["processor minutes", "learning rate", "groups per batch", "seed", "env steps", *(f"{d}, %" for d in DECODINGS)]
    return markdown(heads, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cities", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--batch-groups", type=int, default=4)
    parser.add_argument("--report", action="store_true", help="write the table of the runs on disk alone")
    args = parser.parse_args()
    th.set_num_threads(1)
    setting = (args.seed, args.minutes, args.lr, args.batch_groups)
    done = {tuple(row[name] for name in KEY[1:]) for row in records.read(DATA / f"TSP-{args.cities}.jsonl")}
    if not args.report and setting not in done:
        run(args.cities, args.minutes, *setting[:1], *setting[2:])
    page = put_between(PAGE.read_text(), f"TSP-{args.cities}", table(args.cities))
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
