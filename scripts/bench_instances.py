"""Cost of an update with an EncodingPolicy against a plain torch loop with the same network, on TSP.

python -m scripts.bench_instances --cities 20 50

One thread; GRPO and loop take turns, and medians of processor time are printed, in ms per rollout and update.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch as th

from sb_grpo import GRPO
from sb_grpo.envs.random import group_seeds
from sb_grpo.tasks.routing import TSP

GROUP_SIZE = 8
#: Rollouts and updates of a turn.
TURN = 4


def make_model(n: int, episodes: int, batch_groups: int, n_epochs: int) -> GRPO:
    """A GRPO that updates after each round of episodes."""
    rows = batch_groups * GROUP_SIZE * (n - 1)
    return GRPO(
        "SetPolicy", TSP(episodes, n), group_size=GROUP_SIZE, n_groups=episodes // GROUP_SIZE, advantage="outcome",
        learning_rate=1e-4, n_epochs=n_epochs, batch_size=rows, seed=0, device="cpu",
    )  # fmt: skip


class PlainLoop:
    """GRPO on TSP as one would write it for this problem alone: no env class, no buffer, no groups of unequal length.

    :param policy: its networks and optimiser are used
    """

    def __init__(self, policy: Any, n: int, episodes: int, batch_groups: int, n_epochs: int) -> None:
        self.policy = policy
        self.n = n
        self.b = episodes // GROUP_SIZE
        self.batch_groups = batch_groups
        self.n_epochs = n_epochs
        self.env = TSP(1, n)
        self.next_group = 0

    def __call__(self, n_updates: int = 1) -> None:
        """Collect and update so many times."""
        for _ in range(n_updates):
            self.update()

    def update(self) -> None:
        """Play one episode per member, and learn from them."""
        groups = th.arange(self.b) + self.next_group
        self.next_group += self.b
        cities = self.env.instance(group_seeds(1, groups))
        with th.no_grad():
            code = self.policy.encode(cities)
            visited = th.zeros(self.b, GROUP_SIZE, self.n)
            visited[..., 0] = 1
            current = th.zeros(self.b, GROUP_SIZE, 1)
            first = th.zeros_like(current)
            states, masks, actions, log_probs = [], [], [], []
            tour = [first.long()]
            for _ in range(self.n - 1):
                state = th.cat([first, current, visited], dim=2)
                logits = self.policy.scores(code, state).masked_fill(visited > 0, -1e8)
                action = (logits - th.empty_like(logits).exponential_().log_()).argmax(dim=2)
                states.append(state)
                masks.append(visited)
                actions.append(action)
                log_probs.append(logits.log_softmax(dim=2).gather(2, action.unsqueeze(2)).squeeze(2))
                visited = visited.scatter(2, action.unsqueeze(2), 1)
                current = action.unsqueeze(2).float()
                tour.append(action.unsqueeze(2))
            order = th.cat(tour, dim=2)
            places = cities.gather(1, order.flatten(1).unsqueeze(2).expand(-1, -1, 2)).view(self.b, GROUP_SIZE, self.n, 2)
            returns = -(places - places.roll(-1, dims=2)).norm(dim=3).sum(dim=2)
            advantage = (returns - returns.mean(1, keepdim=True)) / returns.std(1, keepdim=True)
            state, mask = th.stack(states, 2).flatten(1, 2), th.stack(masks, 2).flatten(1, 2)
            action, old = th.stack(actions, 2).flatten(1), th.stack(log_probs, 2).flatten(1)
            advantage = advantage.repeat_interleave(self.n - 1, dim=1)
        parameters = list(self.policy.parameters())
        for _ in range(self.n_epochs):
            for part in th.split(th.randperm(self.b), self.batch_groups):
                logits = self.policy.scores(self.policy.encode(cities[part]), state[part]).masked_fill(mask[part] > 0, -1e8)
                log_prob = -th.nn.functional.cross_entropy(logits.flatten(0, 1), action[part].flatten(), reduction="none")
                ratio = (log_prob - old[part].flatten()).exp()
                gain = advantage[part].flatten()
                loss = -th.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                self.policy.optimizer.zero_grad()
                loss.backward()
                th.nn.utils.clip_grad_norm_(parameters, 0.5)
                self.policy.optimizer.step()


def seconds(run: Callable[[], object]) -> float:
    """Processor seconds of a call."""
    begin = time.process_time()
    run()
    return time.process_time() - begin


def compare(n: int, episodes: int, rounds: int, batch_groups: int, n_epochs: int) -> tuple[float, float]:
    """Median seconds per rollout and update: GRPO's, and the loop's."""
    model = make_model(n, episodes, batch_groups, n_epochs)
    loop = PlainLoop(make_model(n, episodes, batch_groups, n_epochs).policy, n, episodes, batch_groups, n_epochs)
    steps = episodes * (n - 1)
    model.learn(steps)
    loop()
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        taken[0].append(seconds(lambda: model.learn(TURN * steps, reset_num_timesteps=False)))
        taken[1].append(seconds(partial(loop, TURN)))
    own, plain = (statistics.median(column) / TURN for column in taken)
    return own, plain


def memory(n: int, episodes: int) -> int:
    """Bytes of the rollout buffer after a rollout."""
    model = make_model(n, episodes, episodes // GROUP_SIZE, 1)
    model.collect()
    columns = model.rollout_buffer.steps.values()
    parts = [part for column in columns for part in (column.values() if isinstance(column, dict) else [column])]
    return sum(part.numel() * part.element_size() for part in parts)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cities", type=int, nargs="+", default=[20, 50])
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch-groups", type=int, default=16, help="groups per minibatch")
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    th.set_num_threads(1)
    for n in args.cities:
        own, plain = compare(n, args.episodes, args.rounds, args.batch_groups, args.epochs)
        print(
            f"TSP-{n}, {args.episodes} episodes: GRPO {1e3 * own:.0f} ms, plain loop {1e3 * plain:.0f} ms, "
            f"ratio {own / plain:.2f}; rollout buffer {memory(n, args.episodes) / 1e6:.1f} MB"
        )


if __name__ == "__main__":
    main()
