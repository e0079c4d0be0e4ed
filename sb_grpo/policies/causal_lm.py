"""Causal language models as policies: an observation is a history of tokens, an action is the next token.

A history is a row of token ids with :data:`EMPTY` behind its end, so that the histories of an episode begin with each other.
:class:`CausalLMPolicy` encodes only those that no other one of the batch begins with, each once, and reads the outputs of all
others off them: one pass for the log-probabilities of whole episodes. While acting it keeps keys and values of the tokens that
it has seen. Both give the outputs of the plain way, which encodes every history by itself (``tests/test_text.py``).

transformers and peft (the extra ``[text]``) are imported when a policy is built.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import make_proba_distribution
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import nn

from sb_grpo.config import shown
from sb_grpo.policies.actor import ActorPolicy
from sb_grpo.policies.extra_inputs import MASK, env_part, extra_input, space_without
from sb_grpo.policies.heads import make_discrete_head
from sb_grpo.policies.masks import put_masks
from sb_grpo.policies.weights import versions
from sb_grpo.types import Kwargs, SavedState, Settings, State

#: Id behind the end of a history.
EMPTY = -1
#: Model of ``lm=None``: 0.8 million parameters and those of the vocabulary.
SMALL: Settings = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "tie_word_embeddings": True,
}
INSTALL = "install the extra: pip install 'sb_grpo[text]'"


class CausalLMPolicy(ActorPolicy):
    """Language model that chooses the next token.

    :param observation_space: Box of integers ``[context]``: the ids of a history, :data:`EMPTY` behind its end; or a Dict of
        it and an action mask
    :param action_space: Discrete, one action per token of the vocabulary
    :param lr_schedule: learning rate as a function of the remaining progress (1 to 0)
    :param lm: a folder with a model of transformers; its settings as a dict (``model_type`` and the arguments of its config)
        or a config: initialised at random; a torch module with the interface of transformers' causal language models; None:
        :data:`SMALL`. Nothing is downloaded
    :param lora: arguments of peft's ``LoraConfig``, for example ``dict(r=8)``: adapters learn, the model stays
    :param gradient_checkpointing: compute activations again in the backward pass instead of keeping them
    :param bf16: weights of the model in bfloat16; adapters stay in float32
    :param cache: keep keys and values while acting; False for a module that gives none
    :param optimizer_class: optimiser, Adam by default
    :param optimizer_kwargs: its keyword arguments, learning rate excluded
    :raises ValueError: for a model without a language head, of another vocabulary than the action space, or with a shorter
        context than the observation; for other spaces, and without the extra
    """

    episodes_together: ClassVar[bool] = True

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        lr_schedule: Schedule,
        lm: object = None,
        lora: Settings | None = None,
        gradient_checkpointing: bool = False,
        bf16: bool = False,
        cache: bool = True,
        use_sde: bool = False,
        optimizer_class: type[th.optim.Optimizer] = th.optim.Adam,
        optimizer_kwargs: Kwargs | None = None,
    ) -> None:
        context = check_spaces(observation_space, action_space)
        if use_sde:
            raise ValueError("use_sde=True is for Box actions, and tokens are discrete: leave it out.")
        made = make_lm(lm, int(action_space.n), context)  # type: ignore[attr-defined]
        prepare(made, bf16, gradient_checkpointing)
        if lora is not None:
            made = with_adapters(copy.deepcopy(made) if made is lm else made, lora)
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            net_arch=[],
            ortho_init=False,
            features_extractor_class=Trunk,
            features_extractor_kwargs={"lm": made},
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
        )
        del self.features_extractor_kwargs["lm"]  # SB3 would save it with the arguments
        self.lm_source = None if isinstance(lm, nn.Module) else lm
        self.lora = lora
        self.gradient_checkpointing = gradient_checkpointing
        self.bf16 = bf16
        self.cache = cache
        self._seen = Seen()

    @property
    def lm(self) -> Any:
        """The language model; peft's with adapters."""
        return self.features_extractor.lm

    def _build_action_head(self, latent_dim: int) -> None:
        """Use the model's own output layer."""
        self.action_dist = make_proba_distribution(self.action_space)
        self.head = make_discrete_head(self.action_space)
        self.action_net = self.lm.get_output_embeddings()

    def _get_constructor_parameters(self) -> Kwargs:
        own = ("lora", "gradient_checkpointing", "bf16", "cache", "use_sde", "optimizer_class", "optimizer_kwargs")
        return {
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "lr_schedule": self._dummy_schedule,
            "lm": self.lm_source,
            **{name: getattr(self, name) for name in own},
        }

    # ---------------------------------------------------------------- outputs

    def _recall(self, obs: PyTorchObs) -> tuple[th.Tensor, th.Tensor | None]:
        """Hidden state at the end of each history, ``[batch, hidden size]``: the inputs of values."""
        return self.features_extractor(tokens_of(obs)), None

    def _outputs(self, obs: PyTorchObs) -> tuple[th.Tensor, th.Tensor | None]:
        tokens = tokens_of(obs)
        whole, of = whole_histories(tokens)
        at = lengths_of(tokens) - 1
        return _masked(encode(self.lm, whole).logits[of, at].float(), obs), None

    def _outputs_to_act(self, obs: PyTorchObs) -> tuple[th.Tensor, th.Tensor | None]:
        if not self.cache or th.is_grad_enabled():
            return self._outputs(obs)
        tokens = tokens_of(obs)
        return _masked(self._seen.logits(self.lm, tokens, versions(self.lm.parameters())).float(), obs), None

    # ---------------------------------------------------------------- adapters

    @property
    def adapters_alone(self) -> bool:
        """Whether files hold the adapters and not the model, which its folder holds already."""
        return self.lora is not None and isinstance(self.lm_source, str | Path)

    def state_dict(self, *args: Any, **kwargs: Any) -> State:  # type: ignore[override]
        """Weights by name; with adapters on a model from a folder, the adapters'."""
        state: State = super().state_dict(*args, **kwargs)
        if not self.adapters_alone:
            return state
        kept = {kwargs.get("prefix", "") + name for name, p in self.named_parameters() if p.requires_grad}
        return {name: value for name, value in state.items() if name in kept}

    def load_state_dict(self, state_dict: SavedState, strict: bool = True, assign: bool = False) -> object:
        """Load what :meth:`state_dict` has returned."""
        if self.adapters_alone:
            adapters = self.state_dict()
            base = {name: value for name, value in super().state_dict().items() if name not in adapters}
            state_dict = {**base, **state_dict}
        return super().load_state_dict(state_dict, strict, assign)

    def frozen_base(self) -> WithoutAdapters | None:
        """Return the policy without its adapters; None without any."""
        return None if self.lora is None else WithoutAdapters(self)


class WithoutAdapters:
    """Reference policy that a policy with adapters is without them: it has no weights of its own.

    :param policy: with adapters
    """

    def __init__(self, policy: CausalLMPolicy) -> None:
        self.policy = policy

    def log_prob(self, obs: PyTorchObs, actions: th.Tensor) -> th.Tensor:
        """Log-probability of actions, ``[batch]``."""
        with self.policy.lm.disable_adapter():
            return self.policy.log_prob(obs, actions)


class Trunk(BaseFeaturesExtractor):
    """Hidden states of a language model at the end of histories.

    :param observation_space: of the histories
    :param lm: the language model
    """

    def __init__(self, observation_space: spaces.Space, lm: Any) -> None:
        super().__init__(observation_space, int(lm.get_output_embeddings().in_features))
        self.lm = lm

    def forward(self, tokens: th.Tensor) -> th.Tensor:
        whole, of = whole_histories(tokens)
        hidden = encode(self.lm, whole, output_hidden_states=True).hidden_states[-1]
        return hidden[of, lengths_of(tokens) - 1].float()  # type: ignore[no-any-return]


def _masked(out: th.Tensor, obs: PyTorchObs) -> th.Tensor:
    masks = extra_input(obs, MASK)
    return out if masks is None else put_masks(out, masks)


# ---------------------------------------------------------------- histories


def tokens_of(obs: PyTorchObs) -> th.Tensor:
    """Histories of a batch of observations, ``[batch, context]`` int64."""
    part = env_part(obs)
    if isinstance(part, Mapping):  # beside a mask, under a name of the env's
        (part,) = part.values()
    return part.long()  # type: ignore[no-any-return]


def lengths_of(tokens: th.Tensor) -> th.Tensor:
    """Tokens of each history, ``[batch]``.

    :param tokens: ``[batch, context]`` int64, :data:`EMPTY` behind the end
    """
    return (tokens != EMPTY).sum(1)


def whole_histories(tokens: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
    """Choose the histories that begin no other one.

    In alphabetical order, with EMPTY in front of all tokens, a history stands right before one that it begins, if any.

    :param tokens: ``[batch, context]``
    :return: ``[n, longest]`` those histories, and ``[batch]`` the index of one that begins with each row
    """
    rows, of = th.unique(tokens, dim=0, return_inverse=True)
    rows = rows[:, : max(int(lengths_of(rows).max()), 1)]
    begins_next = ((rows[:-1] == rows[1:]) | (rows[:-1] == EMPTY)).all(1)
    is_whole = th.cat([~begins_next, begins_next.new_ones(1)])
    number = is_whole.cumsum(0) - is_whole.long()
    return rows[is_whole], number[of]


def encode(lm: Any, tokens: th.Tensor, **kwargs: Any) -> Any:
    """Run a language model over whole histories, without a cache.

    :param tokens: ``[n, longest]``, padded on the right, where causal attention does not look
    """
    return lm(input_ids=tokens.clamp(min=0), attention_mask=(tokens != EMPTY).long(), use_cache=False, **kwargs)


def cache_argument(lm: Any) -> str:
    """Name of the argument for keys and values: ``cache``, in older versions of transformers ``past_key_values``."""
    model = lm.get_base_model() if hasattr(lm, "get_base_model") else lm
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


class Seen:
    """Keys and values of the histories that the rows of a batch had last, and the tokens behind which they are.

    They are found again by comparing tokens, so that nothing else need know of them. A copy or a pickle begins without any.
    """

    def __init__(self) -> None:
        self.tokens: th.Tensor | None = None  #: [n, context]
        self.length: th.Tensor | None = None  #: [n] tokens whose keys and values are known
        self.layers: list[tuple[th.Tensor, th.Tensor]] = []  #: [n, heads, context, size] each
        self.place: tuple[object, ...] = ()  #: shape, device, versions of the weights

    def __reduce__(self) -> tuple[type[Seen], tuple[()]]:
        return Seen, ()

    @th.inference_mode()
    def logits(self, lm: Any, tokens: th.Tensor, version: object) -> th.Tensor:
        """Logits after each history, ``[n, vocabulary]``.

        :param tokens: ``[n, context]``
        :param version: changes with the weights
        :raises ValueError: for an empty history
        """
        n_tokens = lengths_of(tokens)
        if int(n_tokens.min()) == 0:
            raise ValueError("A token history is empty, so nothing can come next: let reset() begin with a token or more.")
        place = tokens.shape, tokens.device, version
        if self.tokens is None or self.length is None or place != self.place:
            self.layers = []
            self.length = th.zeros_like(n_tokens)
        else:
            unknown = th.arange(tokens.shape[1], device=tokens.device) >= self.length.unsqueeze(1)
            goes_on = ((self.tokens == tokens) | unknown).all(1) & (self.length < n_tokens)
            self.length = th.where(goes_on, self.length, 0)
        self.tokens = tokens.clone()
        self.place = place
        one = n_tokens - self.length == 1
        out = None
        for rows in (one.nonzero().squeeze(1), (~one).nonzero().squeeze(1)):  # most rows have one new token
            if len(rows):
                new = self._append(lm, rows, n_tokens[rows])
                out = new.new_zeros(len(tokens), new.shape[1]) if out is None else out
                out[rows] = new
        self.length = n_tokens
        assert out is not None
        return out

    def _append(self, lm: Any, rows: th.Tensor, n_tokens: th.Tensor) -> th.Tensor:
        """Encode the new tokens of some rows, and keep their keys and values.

        The new tokens stand behind the longest known history; those between are masked.

        :param rows: ``[m]`` index
        :param n_tokens: ``[m]`` of their histories, at least 1
        :return: ``[m, vocabulary]`` logits after the last one
        """
        from transformers import DynamicCache

        assert self.tokens is not None and self.length is not None
        tokens = self.tokens[rows]
        known = self.length[rows]
        n_new = n_tokens - known
        longest = int(known.max())
        step = th.arange(int(n_new.max()), device=rows.device)
        is_new = step < n_new.unsqueeze(1)
        place = (known.unsqueeze(1) + step).clamp(max=tokens.shape[1] - 1)
        is_known = th.arange(longest, device=rows.device) < known.unsqueeze(1)
        past = [(keys[rows, :, :longest], values[rows, :, :longest]) for keys, values in self.layers] if longest else None
        cache = DynamicCache(past)
        logits = lm(
            input_ids=tokens.gather(1, place).clamp(min=0),
            attention_mask=th.cat([is_known, is_new], 1).long(),
            position_ids=place,
            use_cache=True,
            **{cache_argument(lm): cache},
        ).logits
        layers: Any = cache.layers
        if not self.layers:
            n, context = self.tokens.shape
            self.layers = [
                tuple(x.new_zeros(n, x.shape[1], context, x.shape[3]) for x in (layer.keys, layer.values))  # type: ignore[misc]
                for layer in layers
            ]
        row, column = is_new.nonzero(as_tuple=True)
        for kept, layer in zip(self.layers, layers, strict=True):
            for whole, new in zip(kept, (layer.keys, layer.values), strict=True):
                whole[rows[row], :, place[row, column]] = new[row, :, longest + column]
        return logits[th.arange(len(rows), device=rows.device), n_new - 1]  # type: ignore[no-any-return]


# ---------------------------------------------------------------- the model


def check_spaces(observation_space: spaces.Space, action_space: spaces.Space) -> int:
    """Check that observations are histories and actions tokens.

    :return: tokens of the longest history
    :raises ValueError: for others
    """
    space = space_without(observation_space)
    if isinstance(space, spaces.Dict) and len(space) == 1:
        (space,) = space.values()
    is_history = isinstance(space, spaces.Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.integer)
    if not is_history or space.low.min() < EMPTY:  # type: ignore[attr-defined]
        raise ValueError(
            f"CausalLMPolicy reads token histories, not {observation_space}: give a Box of integers from -1 (no token) to "
            "the number of tokens - 1, with one axis, as ReasoningGym-v0 does (docs/words.md)."
        )
    if not isinstance(action_space, spaces.Discrete):
        raise ValueError(f"CausalLMPolicy chooses the next token, but the action space is {action_space}: use a Discrete.")
    if int(space.high.max()) != int(action_space.n) - 1:  # type: ignore[attr-defined]
        raise ValueError(
            f"The observation has tokens up to {int(space.high.max())}, but there are {action_space.n} actions: both must "  # type: ignore[attr-defined]
            "come from one tokenizer, whose size is the number of actions."
        )
    assert space.shape is not None
    return int(space.shape[0])


def make_lm(source: object, n_tokens: int, context: int) -> Any:
    """Make the language model that ``lm`` describes.

    :param source: folder, settings, config, module, or None
    :param n_tokens: size of the vocabulary
    :param context: tokens that it is to read
    :raises ValueError: as :class:`CausalLMPolicy`
    """
    lm = source if isinstance(source, nn.Module) else _from_transformers(source, n_tokens, context)
    name = type(lm).__name__
    head = getattr(lm, "get_output_embeddings", lambda: None)()
    if head is None:
        raise ValueError(
            f"lm: {name} has no language head, so it gives no probabilities of tokens: pass the model that ends in one, such "
            "as AutoModelForCausalLM's."
        )
    config = getattr(lm, "config", None)
    size = getattr(config, "vocab_size", head.out_features)
    if size != n_tokens:
        raise ValueError(
            f"lm: {name} knows {size} tokens, but the env's tokenizer has {n_tokens} (the number of actions): use the "
            f"model's own tokenizer in the env, or build the model with vocab_size={n_tokens}."
        )
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and longest < context:
        raise ValueError(
            f"lm: {name} reads {longest} tokens, but the env's histories have up to {context}: lower the env's context, or "
            "use a model with max_position_embeddings of at least that."
        )
    return lm


def _from_transformers(source: object, n_tokens: int, context: int) -> Any:
    try:
        from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
    except ImportError as error:
        raise ValueError(f"CausalLMPolicy needs transformers: {INSTALL}.") from error
    if isinstance(source, str | Path):
        if not Path(source).is_dir():
            raise ValueError(f"lm={shown(source)} is no folder: pass the path of a saved model; nothing is downloaded.")
        try:
            return AutoModelForCausalLM.from_pretrained(source, local_files_only=True, dtype=th.float32)
        except (ValueError, OSError) as error:
            raise ValueError(f"lm={shown(source)} holds no causal language model: {str(error).splitlines()[0]}") from error
    if source is None or isinstance(source, Mapping):
        given = dict(SMALL if source is None else source)
        kind = given.pop("model_type", None)
        fitting = {"vocab_size": n_tokens, "max_position_embeddings": context, **SPECIAL}
        try:
            source = AutoConfig.for_model(kind, **{**fitting, **given})
        except ValueError as error:
            raise ValueError(
                f"lm: model_type={shown(kind)} is unknown to transformers: 'llama' and 'gpt2' are usual, or pass a config."
            ) from error
    if not isinstance(source, PreTrainedConfig):
        raise ValueError(f"lm={shown(source)} is no language model: pass a folder, a dict of settings, a config or a module.")
    try:
        return AutoModelForCausalLM.from_config(source)  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise ValueError(
            f"lm: {type(source).__name__} has no model with a language head: use one that AutoModelForCausalLM knows, such "
            "as LlamaConfig or GPT2Config."
        ) from error


#: Tokens that a model from settings has none of; those of a tokenizer are the env's.
SPECIAL: Settings = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def prepare(lm: Any, bf16: bool, gradient_checkpointing: bool) -> None:
    """Set precision and memory of a model, and switch dropout off: old and new log-probabilities must be of one policy."""
    if bf16:
        lm.to(th.bfloat16)
    for module in lm.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    if gradient_checkpointing:
        enable = getattr(lm, "activation_checkpointing_enable", None) or lm.gradient_checkpointing_enable
        enable({"use_reentrant": False})


def with_adapters(lm: Any, lora: Settings) -> Any:
    """Add adapters, which alone learn (LoRA, https://arxiv.org/abs/2106.09685).

    :param lora: arguments of peft's ``LoraConfig``
    :raises ValueError: for arguments that it does not take, and without peft
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ValueError(f"lora={shown(lora)} needs peft: {INSTALL}.") from error
    try:
        adapted = get_peft_model(lm, LoraConfig(**{"task_type": "CAUSAL_LM", **lora}))
    except (TypeError, ValueError) as error:
        raise ValueError(f"lora={shown(lora)} does not fit the model ({error}): dict(r=8) is usual.") from error
    return adapted
