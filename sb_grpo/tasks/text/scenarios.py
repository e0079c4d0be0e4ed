"""TextScenario-v0: talks in several turns with a rule-based partner, and rewards by name.

``reset(seed)`` draws topic, facts and need. The agent writes a line, the partner answers by rules, up to ``max_turns``. No
model judges: a line is right if it is the right line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sb_grpo.tasks.text.tokens import TokenEnv, Tokenizer
from sb_grpo.types import Info, Kwargs

#: Names of the rewards, in the order of their weights.
REWARDS = ("solved", "facts", "format", "brevity")
WEIGHTS: Mapping[str, float] = {"solved": 1.0, "facts": 0.2, "format": 0.2, "brevity": 0.1}
#: Topic -> things that have a number.
TOPICS: Mapping[str, tuple[str, ...]] = {
    "ages": ("ann", "bob", "cat", "dan", "eve"),
    "prices": ("apple", "bread", "milk", "pear", "tea"),
    "rooms": ("bath", "desk", "hall", "lab", "shop"),
}
STATES = ("lost", "paid", "sent", "late", "new")
#: Tokens of the longest prompt, and of the partner's longest line.
LONGEST_PROMPT = 56
LONGEST_REPLY = 24


@dataclass(frozen=True)
class Verdict:
    """Judgement of a line of the agent."""

    solved: bool
    true: bool  #: it states nothing that is false
    well_formed: bool
    reply: str  #: the partner's line


@dataclass
class Scenario:
    """One talk."""

    family: str
    prompt: str
    judge: Callable[[Scenario, str], Verdict]
    facts: dict[str, str]
    #: Right answer; for a clarification it counts after the question alone.
    answer: str
    #: Need that the partner tells when asked; empty: the prompt tells it.
    hidden: str = ""
    asked: bool = False
    #: Question of an expert while it does not know the need.
    question: str = field(default="number?")

    def expert_line(self) -> str:
        """Return the line that an expert would write next."""
        return self.question if self.hidden and not self.asked else self.answer


def judge_sum(scenario: Scenario, line: str) -> Verdict:
    """Judge a line such as ``7+12=19``: the two given numbers, and their sum."""
    found = re.fullmatch(r"(\d+)\+(\d+)=(\d+)", line)
    if found is None:
        return Verdict(False, True, False, "write a+b=c:")
    given = sorted(found.groups()[:2]) == sorted(scenario.facts.values())
    first, second, total = map(int, found.groups())
    right = given and total == first + second
    return Verdict(right, right, True, "no, again:")


def judge_fact(scenario: Scenario, line: str) -> Verdict:
    """Judge a line such as ``bob 12``: a given fact, and the one that is needed."""
    found = re.fullmatch(r"(\w+) (\w+)", line)
    if found is None:
        return Verdict(False, True, False, "write name and value:")
    true = scenario.facts.get(found[1]) == found[2]
    return Verdict(line == scenario.answer, true, True, "no, again:")


def judge_clarified(scenario: Scenario, line: str) -> Verdict:
    """Judge a line that asks for the missing number, or one as :func:`judge_fact` does, which is right after that alone."""
    if line == scenario.question:
        scenario.asked = True
        return Verdict(False, True, True, f"{scenario.hidden}:")
    verdict = judge_fact(scenario, line)
    if scenario.asked:
        return verdict
    return Verdict(False, verdict.true, verdict.well_formed, "which do you mean?\n")


def draw_sum(rng: np.random.Generator) -> Scenario:
    """Two facts; the partner asks for their sum."""
    facts = _facts(rng, 2)
    first, second = facts.values()
    prompt = f"{_listed(facts)}. together?\n"
    return Scenario("arithmetic", prompt, judge_sum, facts, f"{first}+{second}={int(first) + int(second)}")


def draw_lookup(rng: np.random.Generator) -> Scenario:
    """Three facts; the partner asks for one of them."""
    facts = _facts(rng, 3)
    need = str(rng.choice(list(facts)))
    return Scenario("lookup", f"{_listed(facts)}. {need}?\n", judge_fact, facts, f"{need} {facts[need]}")


def draw_clarification(rng: np.random.Generator) -> Scenario:
    """States of three orders; the partner does not say which one is its own before it is asked."""
    numbers = rng.choice(np.arange(1, 100), 3, replace=False)
    facts = dict(zip(map(str, numbers), map(str, rng.choice(STATES, 3, replace=False)), strict=True))
    need = str(rng.choice(list(facts)))
    prompt = f"order {_listed(facts)}. where is mine?\n"
    return Scenario("clarification", prompt, judge_clarified, facts, f"{need} {facts[need]}", hidden=need)


FAMILIES: dict[str, Callable[[np.random.Generator], Scenario]] = {
    "arithmetic": draw_sum,
    "lookup": draw_lookup,
    "clarification": draw_clarification,
}


def _facts(rng: np.random.Generator, n: int) -> dict[str, str]:
    topic = str(rng.choice(list(TOPICS)))
    names = rng.choice(TOPICS[topic], n, replace=False)
    return {str(name): str(rng.integers(1, 30)) for name in names}


def _listed(facts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


class TextScenario(TokenEnv):
    """Talk with a partner until its need is met, or for ``max_turns`` lines.

    Rewards come with the end of each line of the agent, by name in ``info["rewards"]`` (between: zeros):

    - ``solved``: 1 for the line that meets the need, which ends the episode
    - ``facts``: -1 for a line that states something false
    - ``format``: -1 for a line of no known form, or without an end token
    - ``brevity``: minus the line's share of ``max_tokens``

    The reward is their weighted sum. ``info["turn"]`` is the turn of the step, from 0; ``info["task"]`` the family;
    ``info["is_success"]`` of the last step says whether the need was met.

    :param families: names among :data:`FAMILIES`; each episode draws one
    :param max_turns: lines of the agent, at least 2 for a clarification
    :param max_tokens: tokens of a line
    :param weights: of the rewards by name; those that are left out keep :data:`WEIGHTS`
    :param tokens: ``"char"``, ``"byte"`` or a tokenizer
    :param context: tokens of the longest history; None: enough for all turns
    :param render_mode: ``"ansi"``
    :raises ValueError: for unknown families or rewards, and for too few turns
    """

    def __init__(
        self,
        families: Sequence[str] = tuple(FAMILIES),
        max_turns: int = 3,
        max_tokens: int = 12,
        weights: Mapping[str, float] | None = None,
        tokens: str | Tokenizer = "char",
        context: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        unknown = [name for name in families if name not in FAMILIES]
        if unknown or not families or isinstance(families, str):
            raise ValueError(f"families={families!r} must be a list of one or more of {list(FAMILIES)}.")
        least = 2 if "clarification" in families else 1
        if max_turns < least:
            raise ValueError(f"max_turns={max_turns} must be at least {least}: a question where it is needed, and the answer.")
        strange = [name for name in weights or {} if name not in REWARDS]
        if strange:
            raise ValueError(f"weights has {strange}, but the rewards are {list(REWARDS)}.")
        self.families = list(families)
        self.max_turns = max_turns
        self.weights = {**WEIGHTS, **(weights or {})}
        self.room = max_turns * (max_tokens + LONGEST_REPLY)
        super().__init__(tokens, context or LONGEST_PROMPT + self.room, max_tokens, render_mode)
        self.turn = 0
        self.scenario: Scenario | None = None

    def reset(self, *, seed: int | None = None, options: Kwargs | None = None) -> tuple[np.ndarray, Info]:
        super().reset(seed=seed)
        family = str(self.np_random.choice(self.families))
        self.scenario = FAMILIES[family](self.np_random)
        self.turn = 0
        self.begin(self.scenario.prompt, self.room)
        return self.look(), {"task": family}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, Info]:
        assert self.scenario is not None
        info: Info = {"turn": self.turn, "task": self.scenario.family, "rewards": dict.fromkeys(REWARDS, 0.0)}
        if not self.write(int(action)):
            return self.look(), 0.0, False, False, info
        verdict = self.scenario.judge(self.scenario, self.line_text())
        solved = verdict.solved and self.finished
        info["rewards"] = {
            "solved": float(solved),
            "facts": 0.0 if verdict.true else -1.0,
            "format": 0.0 if verdict.well_formed and self.finished else -1.0,
            "brevity": -len(self.line) / self.max_tokens,
        }
        reward = sum(self.weights[name] * value for name, value in info["rewards"].items())
        self.turn += 1
        over = solved or self.turn == self.max_turns
        if over:
            info["is_success"] = solved
        else:
            self.reply(verdict.reply)
        return self.look(), reward, over, False, info

    def expert_line(self) -> str:
        """Return the shortest line that leads on."""
        assert self.scenario is not None
        return self.scenario.expert_line()
