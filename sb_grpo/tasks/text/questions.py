"""ReasoningGym-v0: one question of reasoning-gym's generators per episode, answered token by token.

Stojanovski et al., 2025 (https://arxiv.org/abs/2505.24760). The reset seed is the question, so a group of GRPO is G answers to
one question, as in DeepSeekMath.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sb_grpo.tasks.text.tokens import END, Characters, TokenEnv, Tokenizer
from sb_grpo.types import Info, Kwargs, Settings

DIGITS = "0123456789"
LETTERS = "".join(letter for letter in Characters.letters if letter.isalpha())
#: Questions of a dataset, by number.
N_QUESTIONS = 2**31 - 1


@dataclass(frozen=True)
class Task:
    """Difficulty, short prompt and letters of one dataset."""

    #: Setting -> value at difficulty 0 and 1.
    levels: Mapping[str, tuple[int, int]]
    #: From an entry's metadata to a prompt for small models.
    prompt: Callable[[Settings], str]
    #: Letters that an answer may hold.
    letters: str
    #: Tokens of the longest answer with the end token, and of the longest short prompt.
    max_tokens: int
    longest_prompt: int


def _rows(grid: Iterable[Iterable[object]], empty: str = "_") -> str:
    return "\n".join(" ".join(str(cell) if cell else empty for cell in row) for row in grid)


TASKS: dict[str, Task] = {
    "chain_sum": Task(
        {"min_terms": (2, 2), "max_terms": (2, 6), "min_digits": (1, 1), "max_digits": (1, 4)},
        lambda of: of["expression"].replace(" ", "") + "=",
        DIGITS + "-",
        8,
        40,
    ),
    "countdown": Task(
        {"min_numbers": (2, 4), "max_numbers": (2, 6), "max_value": (9, 100), "min_target": (1, 100), "max_target": (99, 999)},
        lambda of: " ".join(map(str, of["numbers"])) + f"={of['target']}:",
        DIGITS + "+-*/() ",
        48,
        40,
    ),
    "spell_backward": Task({"min_word_len": (3, 3), "max_word_len": (3, 10)}, lambda of: of["word"] + ":", LETTERS, 12, 12),
    "word_sorting": Task(
        {"min_words": (2, 3), "max_words": (2, 10), "min_word_length": (3, 3), "max_word_length": (3, 12)},
        lambda of: f"{of['direction'][0]} " + ", ".join(of["transformed_words"]) + ":",
        LETTERS + DIGITS + "_, ",
        140,
        144,
    ),
    "mini_sudoku": Task({"min_empty": (1, 8), "max_empty": (2, 12)}, lambda of: _rows(of["puzzle"]) + "\n", "1234 \n", 32, 32),
    "maze": Task(
        {"min_dist": (2, 5), "max_dist": (4, 10), "min_grid_size": (5, 5), "max_grid_size": (5, 10)},
        lambda of: "\n".join(of["grid"]) + f"\n{of['start']}{of['goal']}{of['wall']}{of['path']}:",
        DIGITS,
        4,
        120,
    ),
}


class ReasoningGym(TokenEnv):
    """Answer one question. The reward comes with the end token: reasoning-gym's own score, in [0, 1]; before it 0.

    An answer of ``max_tokens`` tokens without an end token is cut (truncated) and earns nothing. ``info["is_success"]`` of the
    last step says whether the score is 1.

    :param dataset: ``"chain_sum"``, ``"countdown"``, ``"spell_backward"``, ``"word_sorting"``, ``"mini_sudoku"``, ``"maze"``;
        any other of reasoning-gym's with ``prompt="full"`` and ``settings``
    :param difficulty: in [0, 1]; 1 has reasoning-gym's own upper limits
    :param settings: of the generator; they go over those of the difficulty
    :param prompt: ``"short"``: the question's data alone, for models that learn from scratch; ``"full"``: reasoning-gym's text
    :param masks: provide masks: the letters that an answer may hold, and the end token
    :param tokens: ``"char"``, ``"byte"`` or a tokenizer
    :param context: tokens of the longest history; None: for the task's longest prompt and answer
    :param max_tokens: tokens of the longest answer; None: the task's
    :param render_mode: ``"ansi"``
    :raises ValueError: for a dataset that reasoning-gym does not know, and for settings out of range
    """

    def __init__(
        self,
        dataset: str = "chain_sum",
        difficulty: float = 0.0,
        settings: Settings | None = None,
        prompt: str = "short",
        masks: bool = False,
        tokens: str | Tokenizer = "char",
        context: int | None = None,
        max_tokens: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.dataset = dataset
        self.settings = dict(settings or {})
        self.task = TASKS.get(dataset)
        if prompt not in ("short", "full"):
            raise ValueError(f"prompt={prompt!r} is unknown: use 'short' or 'full'.")
        self.prompt = prompt
        self.set_difficulty(difficulty)
        self._make_data()
        if self.task is None and (prompt == "short" or masks):
            raise ValueError(
                f"dataset={dataset!r} has no short prompt and no masks here: pass prompt='full' and masks=False, or one of "
                f"{list(TASKS)}."
            )
        answer = max_tokens or (self.task.max_tokens if self.task else 64)
        requested = self.task.longest_prompt if self.task and prompt == "short" else 1000
        super().__init__(tokens, context or requested + answer, answer, render_mode)
        self.entry: Kwargs = {}
        if masks:
            assert self.task is not None
            self._mask = np.zeros(self.tokenizer.size, dtype=bool)
            self._mask[[END, *self.tokenizer.encode(self.task.letters)]] = True
            self.action_masks = self._masks

    def set_difficulty(self, difficulty: float) -> None:
        """Change the difficulty, from the next reset on.

        :param difficulty: in [0, 1]
        :raises ValueError: for other values
        """
        if not 0.0 <= difficulty <= 1.0:
            raise ValueError(f"difficulty={difficulty} must lie in [0, 1]: 1 has reasoning-gym's own upper limits.")
        self.difficulty = difficulty
        self._data: Any = None

    def _make_data(self) -> None:
        try:
            import reasoning_gym
        except ImportError as error:
            raise ValueError("ReasoningGym-v0 needs reasoning-gym: install the extra: pip install 'sb_grpo[text]'.") from error
        if self.dataset not in reasoning_gym.factory.DATASETS:
            raise ValueError(
                f"dataset={self.dataset!r} is unknown to reasoning-gym {reasoning_gym.__version__}: use one of {list(TASKS)}, "
                "or another name in reasoning_gym.factory.DATASETS."
            )
        levels = self.task.levels if self.task else {}
        graded = {name: round(easy + self.difficulty * (hard - easy)) for name, (easy, hard) in levels.items()}
        try:
            self._data = reasoning_gym.create_dataset(self.dataset, seed=0, size=N_QUESTIONS, **{**graded, **self.settings})
        except (TypeError, ValueError, AssertionError) as error:
            raise ValueError(
                f"settings={self.settings} do not suit {self.dataset!r} at difficulty={self.difficulty} ({error}): see "
                f"reasoning-gym's config of it, or leave settings out."
            ) from error

    def reset(self, *, seed: int | None = None, options: Kwargs | None = None) -> tuple[np.ndarray, Info]:
        super().reset(seed=seed)
        if self._data is None:
            self._make_data()
        self.entry = self._data[int(self.np_random.integers(N_QUESTIONS))]
        short = self.prompt == "short" and self.task is not None
        question = self.task.prompt(self.entry["metadata"]) if short else self.entry["question"] + "\n"  # type: ignore[union-attr]
        self.begin(question, self.max_tokens)
        return self.look(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, Info]:
        if not self.write(int(action)):
            return self.look(), 0.0, False, False, {}
        reward = float(self._data.score_answer(self.line_text(), self.entry)) if self.finished else 0.0
        return self.look(), reward, self.finished, not self.finished, {"is_success": reward >= 1.0}

    def expert_line(self) -> str:
        """Return reasoning-gym's answer."""
        return str(self.entry["answer"])

    def _masks(self) -> np.ndarray:
        return self._mask
