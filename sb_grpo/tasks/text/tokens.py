"""Envs whose actions are tokens: tokenizers, the token history as observation, demonstrations, and learning from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces

from sb_grpo.policies import ActorPolicy
from sb_grpo.policies.causal_lm import EMPTY

#: Token that ends a line of the agent.
END = 0


class Tokenizer(Protocol):
    """Interface of a tokenizer. Token 0 (:data:`END`) ends a line and has no text."""

    size: int  #: tokens, the end token included

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of ids."""


class Characters:
    """One token per line break and printable character of Latin-1: 192 tokens with the end token."""

    letters = "\n" + "".join(chr(code) for code in (*range(32, 127), *range(161, 256)))
    size = len(letters) + 1

    def encode(self, text: str) -> list[int]:
        """Ids of a text.

        :raises ValueError: naming a character that is not in Latin-1
        """
        found = [self.letters.find(letter) + 1 for letter in text]
        if 0 in found:
            raise ValueError(f"The character {text[found.index(0)]!r} is not in Latin-1: use tokens='byte'.")
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of ids, without end tokens."""
        return "".join(self.letters[token - 1] for token in tokens if token != END)


class Bytes:
    """One token per byte of UTF-8: 257 tokens with the end token."""

    size = 257

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        return [byte + 1 for byte in text.encode()]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of ids, without end tokens; bytes that are no UTF-8 become the replacement character."""
        return bytes(token - 1 for token in tokens if token != END).decode(errors="replace")


TOKENIZERS: dict[str, type[Characters] | type[Bytes]] = {"char": Characters, "byte": Bytes}


def make_tokenizer(tokens: str | Tokenizer) -> Tokenizer:
    """Make the tokenizer that the argument ``tokens`` names.

    :param tokens: ``"char"``, ``"byte"``, or an object with ``size``, ``encode`` and ``decode``
    :raises ValueError: for anything else
    """
    if isinstance(tokens, str) and tokens in TOKENIZERS:
        return TOKENIZERS[tokens]()
    if all(hasattr(tokens, name) for name in ("size", "encode", "decode")):
        return tokens  # type: ignore[return-value]
    raise ValueError(
        f"tokens={tokens!r} is no tokenizer: use 'char', 'byte', or an object with size, encode(text) and decode(ids), whose "
        "token 0 ends a line."
    )


class TokenEnv(gym.Env[np.ndarray, np.int64]):
    """Base of the text envs: an action is a token, an observation the token history.

    The observation is ``[context]`` int32: the ids of all that was said, -1 behind it. The action space is Discrete, one
    action per token. Subclasses call :meth:`begin` with a prompt in ``reset``, and :meth:`write` with each action in ``step``.

    :param tokens: ``"char"``, ``"byte"`` or a tokenizer
    :param context: tokens of the longest history
    :param max_tokens: tokens of the agent's longest line
    :param render_mode: ``"ansi"``: :meth:`render` returns the text so far
    """

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012 - Gymnasium's

    def __init__(self, tokens: str | Tokenizer, context: int, max_tokens: int, render_mode: str | None = None) -> None:
        self.tokenizer = make_tokenizer(tokens)
        for name, value in (("context", context), ("max_tokens", max_tokens)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1 token.")
        self.context = context
        self.max_tokens = max_tokens
        self.render_mode = render_mode
        self.observation_space = spaces.Box(EMPTY, self.tokenizer.size - 1, (context,), np.int32)
        self.action_space = spaces.Discrete(self.tokenizer.size)
        self.history: list[int] = []  #: all tokens so far
        self.line: list[int] = []  #: the agent's, of its line so far

    def begin(self, prompt: str, room: int) -> None:
        """Begin an episode with a prompt.

        :param room: tokens that may follow
        :raises ValueError: for a prompt that leaves less
        """
        self.history = self.tokenizer.encode(prompt)
        self.line = []
        if not 1 <= len(self.history) <= self.context - room:
            raise ValueError(
                f"The prompt {prompt!r} has {len(self.history)} tokens, but context={self.context} holds 1 to "
                f"{self.context - room} beside {room} that may follow: make the env with context="
                f"{len(self.history) + room} or more, or ask for easier tasks."
            )

    def write(self, token: int) -> bool:
        """Append a token of the agent.

        :return: whether its line is over
        """
        self.history.append(token)
        self.line.append(token)
        return token == END or len(self.line) == self.max_tokens

    @property
    def finished(self) -> bool:
        """Whether the agent has ended its line itself."""
        return bool(self.line) and self.line[-1] == END

    def line_text(self) -> str:
        """Text of the agent's line."""
        return self.tokenizer.decode(self.line)

    def reply(self, text: str) -> None:
        """Append a line of the partner; the agent's next line begins."""
        self.history += self.tokenizer.encode(text)
        self.line = []

    def look(self) -> np.ndarray:
        """Return the observation."""
        seen = np.full(self.context, EMPTY, dtype=np.int32)
        seen[: len(self.history)] = self.history
        return seen

    def render(self) -> str:  # type: ignore[override]
        """Return the text so far; a line of the agent ends in a line break."""
        text = [self.tokenizer.decode([token]) if token != END else "\n" for token in self.history]
        return "".join(text)

    def expert_line(self) -> str:
        """Return a right line in the agent's place."""
        raise NotImplementedError

    def expert(self) -> int:
        """Return the next token of :meth:`expert_line`, from the beginning of a line on."""
        line = [*self.tokenizer.encode(self.expert_line()), END]
        return line[len(self.line)]


class Demonstrations(NamedTuple):
    """Steps of an expert, those of an episode adjacent."""

    observations: np.ndarray  #: [M, context] int32
    actions: np.ndarray  #: [M] int64
    episode: np.ndarray  #: [M] int64, ascending from 0


def demonstrate(env: gym.Env[np.ndarray, np.int64], n_episodes: int, seed: int = 0) -> Demonstrations:
    """Let the expert of a text env play.

    :param env: made by ``gym.make``
    :param n_episodes: from the reset seeds ``seed``, ``seed + 1``, ...
    """
    observations = []
    actions = []
    episodes = []
    for episode in range(n_episodes):
        obs, _ = env.reset(seed=seed + episode)
        done = False
        while not done:
            action = env.unwrapped.expert()  # type: ignore[attr-defined]
            observations.append(obs)
            actions.append(action)
            episodes.append(episode)
            obs, _, terminated, truncated, _ = env.step(np.int64(action))
            done = terminated or truncated
    return Demonstrations(np.stack(observations), np.array(actions), np.array(episodes))


def imitate(
    policy: ActorPolicy, shown: Demonstrations, n_steps: int, batch_size: int = 64, learning_rate: float = 1e-3
) -> list[float]:
    """Train a policy to do as the expert: a supervised start before GRPO (behaviour cloning).

    It uses an optimiser of its own, so that GRPO begins with a fresh one.

    :param policy: ``model.policy``
    :param n_steps: gradient steps, with Adam and a learning rate that falls linearly
    :param batch_size: episodes of a gradient step
    :return: cross-entropy per token of every step, in nats
    """
    policy.set_training_mode(True)
    weights = [p for p in policy.parameters() if p.requires_grad]
    optimizer = th.optim.Adam(weights, lr=learning_rate)
    first = np.searchsorted(shown.episode, np.arange(shown.episode[-1] + 2))
    losses = []
    for step in range(n_steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * (1.0 - step / n_steps)
        chosen = np.random.randint(len(first) - 1, size=batch_size)
        rows = np.concatenate([np.arange(first[i], first[i + 1]) for i in chosen])
        observations = th.as_tensor(shown.observations[rows], device=policy.device)
        actions = th.as_tensor(shown.actions[rows], device=policy.device)
        loss = -policy.log_prob(observations, actions).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        th.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        losses.append(loss.item())
    policy.set_training_mode(False)
    policy.newly_loaded = True  # a reference policy is made of the weights as they are now
    return losses
