"""Actor-only policies: features extractor, policy network, action distribution. No critic."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, TypeAlias

import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import (
    DiagGaussianDistribution,
    Distribution,
    StateDependentNoiseDistribution,
    make_proba_distribution,
)
from stable_baselines3.common.preprocessing import get_action_dim
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
    create_mlp,
)
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import nn

from sb_grpo.config import integer, shown
from sb_grpo.maths.normalizer import RunningNormalizer
from sb_grpo.policies.extra_inputs import MASK, MEMORY, SEQUENCE, env_part, extra_input, space_without
from sb_grpo.policies.heads import GaussianHead, StateDependentNoiseHead, make_discrete_head
from sb_grpo.policies.masks import GivenMasks, choices_of, put_masks
from sb_grpo.policies.memory import SPAN, Memory
from sb_grpo.policies.numbers import trouble_with
from sb_grpo.policies.observations import from_zero, reads_flat, starts_of
from sb_grpo.policies.optimizer import make_optimizer
from sb_grpo.policies.predicting import PredictingPolicy
from sb_grpo.types import Kwargs

LAYER = integer(1, 16_384)
MOST_WEIGHTS = 10_000_000


#: Hidden layers in any of SB3's forms.
NetArch: TypeAlias = Sequence[int] | dict[str, list[int]]


class ActorPolicy(PredictingPolicy):
    """Policy network without any value network, value head or value optimiser.

    :param observation_space: any space that SB3 preprocesses
    :param action_space: Box, Discrete, MultiDiscrete or MultiBinary
    :param lr_schedule: learning rate as a function of the remaining progress (1 to 0)
    :param net_arch: hidden layer sizes, ``[64, 64]`` by default (none after a NatureCNN); ``dict(pi=[...])`` is understood
    :param activation_fn: activation of the hidden layers
    :param ortho_init: orthogonal initialisation with gain sqrt(2), 0.01 for the action layer, as in SB3's PPO
    :param use_sde: state-dependent exploration (Box actions only)
    :param log_std_init: initial log standard deviation of Box actions
    :param full_std: gSDE: one standard deviation per latent feature and action, not per latent feature
    :param use_expln: gSDE: ``expln`` instead of ``exp`` keeps the deviation from growing too fast
    :param squash_output: gSDE: squash actions through tanh to the bounds of the space
    :param features_extractor_class: network in front of the policy network
    :param features_extractor_kwargs: its keyword arguments
    :param normalize_images: divide uint8 images by 255
    :param normalize_obs: standardise flat observations by running statistics that are saved with the policy, instead of
        VecNormalize; GRPO updates them between rollouts
    :param memory: ``"lstm"`` or ``"gru"``: recurrent layers between features and policy network
    :param memory_size: units per layer of the memory
    :param n_layers: layers of the memory
    :param memory_span: longest initial time scale of every other unit, in steps
    :param optimizer_class: optimiser, Adam by default (then fused, with eps 1e-5)
    :param optimizer_kwargs: its keyword arguments, learning rate excluded
    """

    #: Whether an update is cheaper with all steps of an episode in one minibatch.
    episodes_together: ClassVar[bool] = False

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        lr_schedule: Schedule,
        net_arch: NetArch | None = None,
        activation_fn: type[nn.Module] = nn.Tanh,
        ortho_init: bool = True,
        use_sde: bool = False,
        log_std_init: float = 0.0,
        full_std: bool = True,
        use_expln: bool = False,
        squash_output: bool = False,
        features_extractor_class: type[BaseFeaturesExtractor] = FlattenExtractor,
        features_extractor_kwargs: Kwargs | None = None,
        normalize_images: bool = True,
        normalize_obs: bool = False,
        share_features_extractor: bool | None = None,
        memory: str | None = None,
        memory_size: int = 64,
        n_layers: int = 1,
        memory_span: float = SPAN,
        optimizer_class: type[th.optim.Optimizer] = th.optim.Adam,
        optimizer_kwargs: Kwargs | None = None,
    ) -> None:
        if optimizer_kwargs is None:
            optimizer_kwargs = {"eps": 1e-5, "fused": True} if optimizer_class is th.optim.Adam else {}
        if squash_output and not use_sde:
            raise ValueError("squash_output=True needs gSDE; pass use_sde=True as well or leave squash_output out.")
        super().__init__(
            observation_space,
            action_space,
            features_extractor_class,
            features_extractor_kwargs,
            normalize_images=normalize_images,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
            squash_output=squash_output,
        )
        if net_arch is None:
            net_arch = [] if features_extractor_class is NatureCNN else [64, 64]
        self.net_arch: list[int] = layers_of_the_actor(net_arch)
        if share_features_extractor is not None:
            warnings.warn(
                f"share_features_extractor={share_features_extractor} is left aside: there is no critic to share it with.",
                UserWarning,
                stacklevel=2,
            )
        self._starts = starts_of(observation_space)
        self.newly_loaded = False  #: load_actor() has set the weights, and no reference policy was made of them yet
        self.activation_fn = activation_fn
        self.ortho_init = ortho_init
        self.use_sde = use_sde
        self.log_std_init = log_std_init
        self.full_std = full_std
        self.use_expln = use_expln

        self.features_extractor = self.make_features_extractor()
        self.features_dim = n_features = int(self.features_extractor.features_dim)
        self.memory_kind = memory
        self.memory_size = memory_size
        self.n_layers = n_layers
        self.memory_span = memory_span
        self.memory = None
        if memory is not None:
            self.memory = Memory(memory, n_features, memory_size, n_layers, memory_span, self.features_beside_memory)
            self.features_dim = self.memory.n_outputs
        self.policy_net = Layers(*create_mlp(self.features_dim, -1, self.net_arch, activation_fn))
        self._build_action_head(self.net_arch[-1] if self.net_arch else self.features_dim)
        one_each = isinstance(action_space, spaces.Box | spaces.MultiBinary)
        self.n_outputs = get_action_dim(action_space) if one_each else sum(choices_of(action_space))
        if ortho_init:
            for module, gain in ((self.features_extractor, 2**0.5), (self.policy_net, 2**0.5), (self.action_net, 0.01)):
                module.apply(partial(self.init_weights, gain=gain))
        self._flat = reads_flat(self)
        self.normalize_obs = normalize_obs
        if normalize_obs:
            if not self._obs_is_features:
                remedy = "use VecNormalize" if isinstance(observation_space, spaces.Box | spaces.Dict) else "leave it out"
                raise ValueError(f"normalize_obs=True is for flat observations, not {observation_space}: {remedy}.")
            self.obs_normalizer = RunningNormalizer(n_features, clip=10.0)
        self.optimizer = make_optimizer(self.optimizer_class, self.parameters(), lr_schedule(1), self.optimizer_kwargs)

    @th.no_grad()  # gSDE's first noise could not be copied if it kept the gradient of its scale
    def _build_action_head(self, latent_dim: int) -> None:
        """Create ``action_net``, ``log_std`` (Box only), ``action_dist`` (SB3's object) and ``head`` (the hot path)."""
        if not isinstance(self.action_space, spaces.Box):
            self.head = make_discrete_head(self.action_space)
        sde_kwargs = {"full_std": self.full_std, "squash_output": self.squash_output, "use_expln": self.use_expln}
        self.action_dist = make_proba_distribution(
            self.action_space,
            use_sde=self.use_sde,
            dist_kwargs={**sde_kwargs, "learn_features": False} if self.use_sde else None,
        )
        if isinstance(self.action_dist, StateDependentNoiseDistribution):
            self.action_net, self.log_std = self.action_dist.proba_distribution_net(latent_dim, self.log_std_init, latent_dim)
            self.head = StateDependentNoiseHead(self.action_dist, self)
        elif isinstance(self.action_dist, DiagGaussianDistribution):
            self.action_net, self.log_std = self.action_dist.proba_distribution_net(latent_dim, self.log_std_init)
            self.head = GaussianHead(self)
        else:
            self.action_net = self.action_dist.proba_distribution_net(latent_dim)  # type: ignore[call-arg, assignment]

    def _get_constructor_parameters(self) -> Kwargs:
        data = super()._get_constructor_parameters()
        data.update(
            lr_schedule=self._dummy_schedule,  # not needed to use the policy alone
            net_arch=self.net_arch,
            activation_fn=self.activation_fn,
            ortho_init=self.ortho_init,
            use_sde=self.use_sde,
            log_std_init=self.log_std_init,
            full_std=self.full_std,
            use_expln=self.use_expln,
            squash_output=self.squash_output,
            features_extractor_class=self.features_extractor_class,
            features_extractor_kwargs=self.features_extractor_kwargs,
            normalize_obs=self.normalize_obs,
            memory=self.memory_kind,
            memory_size=self.memory_size,
            n_layers=self.n_layers,
            memory_span=self.memory_span,
            optimizer_class=self.optimizer_class,
            optimizer_kwargs=self.optimizer_kwargs,
        )
        return data

    @property
    def device(self) -> th.device:
        """Device of the action layer. SB3's property walks all modules for the first parameter, at every step."""
        action_net = self.action_net
        return action_net.weight.device if type(action_net) is nn.Linear else super().device

    @property
    def seen_space(self) -> spaces.Space:
        """Space of the observations in a rollout."""
        return self.observation_space

    @staticmethod
    def flat_observations(obs: PyTorchObs) -> th.Tensor:
        """Flat float observations, ``[batch, features_dim]``, before any normalisation."""
        if not isinstance(obs, th.Tensor):
            obs = env_part(obs)
        assert isinstance(obs, th.Tensor)
        return obs.float().flatten(1)

    def make_features_extractor(self) -> BaseFeaturesExtractor:
        """Make the features extractor without the mask, which is not a network input."""
        return self.features_extractor_class(space_without(self.observation_space), **self.features_extractor_kwargs)

    @property
    def _obs_is_features(self) -> bool:
        """Whether a flat float observation is its own feature vector: no preprocessing on the hot path."""
        extractor: Any = self._modules["features_extractor"]
        replaced = "extract_features" in self.__dict__ or "forward" in extractor.__dict__ or hooked(extractor)
        return self._flat and not replaced and type(extractor) is FlattenExtractor

    def features(self, obs: PyTorchObs) -> th.Tensor:
        """Features of a batch of observations, after the recurrent layers if there are any.

        :param obs: ``[batch, ...]`` or a dict of such
        :return: ``[batch, features_dim]`` float
        """
        return self._recall(obs)[0]

    def _recall(self, obs: PyTorchObs) -> tuple[th.Tensor, th.Tensor | None]:
        """:meth:`features`, and the recurrent state after the step; None without memory, and for whole sequences."""
        if self._obs_is_features:
            flat = self.flat_observations(obs)
            seen = self.obs_normalizer(flat) if self.normalize_obs else flat
        else:
            seen = self.extract_features(from_zero(env_part(obs), self._starts))
        return (seen, None) if self.memory is None else self.memory(seen, extra_input(obs, MEMORY), extra_input(obs, SEQUENCE))

    def _outputs(self, obs: PyTorchObs) -> tuple[th.Tensor, th.Tensor | None]:
        """Parameters of the action distribution, and the recurrent state after the step."""
        features, after = self._recall(obs)
        return self._masked(self._scores(features, obs), obs), after

    @staticmethod
    def _masked(out: th.Tensor, obs: PyTorchObs) -> th.Tensor:
        masks = obs.get(MASK) if isinstance(obs, dict) else None
        return out if masks is None else put_masks(out, masks)

    def _outputs_to_act(self, obs: PyTorchObs) -> tuple[th.Tensor, th.Tensor | None]:
        """:meth:`_outputs` for the next step of every env, where a policy may use what it has computed for the last one."""
        return self._outputs(obs)

    def _scores(self, features: th.Tensor, obs: PyTorchObs) -> th.Tensor:
        """Parameters of the action distribution before any mask, ``[batch, n]``."""
        latent = through(self.policy_net, features)
        out = through(self.action_net, latent)
        return th.cat([out, latent], dim=-1) if self.use_sde else out

    def act(self, obs: PyTorchObs, deterministic: bool = False) -> th.Tensor:
        """Choose actions, without log-probabilities.

        :param obs: ``[batch, ...]`` or a dict of such
        :param deterministic: the mode instead of a sample
        :return: actions ``[batch]`` (Discrete) or ``[batch, n]``
        """
        return self.act_and_remember(obs, deterministic)[0]

    def act_and_remember(self, obs: PyTorchObs, deterministic: bool = False) -> tuple[th.Tensor, th.Tensor | None]:
        """Choose actions as :meth:`act`, and return the recurrent state after the step, or None. NaN is a ValueError."""
        actions, _, after = self._choose(obs, deterministic)
        return actions, after

    def _choose(self, obs: PyTorchObs, deterministic: bool) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        out, after = self._outputs_to_act(obs)
        if (trouble := trouble_with(self, out)) is not None:
            raise ValueError(f"No action can be chosen: {trouble}")
        return self.head.mode(out) if deterministic else self.head.sample(out, self.head.noise(out)), out, after

    def noise(self, *batch: int) -> th.Tensor:
        """Draw random numbers for :meth:`sample`, for many steps in one call.

        :param batch: sizes in front, for example ``n_steps, n_envs``
        :return: ``[*batch, n]``
        """
        return self.head.noise(th.empty((*batch, self.n_outputs), device=self.device))

    def sample(self, obs: PyTorchObs, noise: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """Actions and their log-probabilities, from given random numbers.

        :param obs: ``[batch, ...]``
        :param noise: ``[batch, n]`` of :meth:`noise`
        :return: actions ``[batch]`` (Discrete) or ``[batch, n]``, log-probabilities ``[batch]``, the recurrent state after the
            step
        """
        out, after = self._outputs_to_act(obs)
        actions = self.head.sample(out := out.float(), noise)
        return actions, self.head.log_prob(out, actions), after

    def log_prob(self, obs: PyTorchObs, actions: th.Tensor) -> th.Tensor:
        """Log-probability of actions, ``[batch]``; bfloat16 outputs under autocast are widened first.

        Rounding log-probabilities to bfloat16 would move ratios near 1 by up to 0.4 %.
        """
        return self.head.log_prob(self._outputs(obs)[0].float(), actions)

    def log_prob_and_entropy(self, obs: PyTorchObs, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """Log-probability and entropy per row, ``[batch]`` each; squashed gSDE estimates the entropy by -log_prob."""
        out = self._outputs(obs)[0].float()
        log_prob = self.head.log_prob(out, actions)
        entropy = self.head.entropy(out)
        return log_prob, -log_prob if entropy is None else entropy

    def get_distribution(self, obs: PyTorchObs, action_masks: GivenMasks = None) -> Distribution:
        """SB3's distribution object for these observations. It is shared and mutable: copy it before a second call."""
        out = self._outputs(self.with_masks(obs, action_masks))[0]
        if isinstance(self.head, StateDependentNoiseHead):
            return self.head.distribution(out)
        if isinstance(self.action_dist, DiagGaussianDistribution):
            return self.action_dist.proba_distribution(out, self.log_std)
        return self.action_dist.proba_distribution(out)

    def frozen_base(self) -> Any:
        """Return a reference policy that shares this one's frozen weights; None: there is none, and a copy serves."""
        return None

    def reset_noise(self, n_envs: int = 1) -> None:
        """gSDE: draw a new exploration matrix per env.

        :param n_envs: number of matrices
        :raises ValueError: without gSDE
        """
        if not isinstance(self.head, StateDependentNoiseHead):
            raise ValueError("reset_noise() belongs to gSDE; construct the policy with use_sde=True.")
        self.head.draw(n_envs)
        if n_envs == 1:  # the matrix that SB3 uses for one env; see renew_noise
            self.head.dist.exploration_mat = self.head.dist.exploration_matrices[0]

    @th.no_grad()
    def renew_noise(self, mask: th.Tensor) -> None:
        """gSDE: draw new exploration matrices for some envs. Members of a group must not share one, or they would be copies.

        :param mask: ``[n_envs]`` bool, True if an episode starts
        """
        dist = self.action_dist
        assert isinstance(dist, StateDependentNoiseDistribution)
        fresh = dist.weights_dist.rsample(mask.shape)
        dist.exploration_matrices = th.where(mask.view(-1, 1, 1), fresh, dist.exploration_matrices)
        if len(mask) == 1:
            dist.exploration_mat = dist.exploration_matrices[0]


MlpPolicy = ActorPolicy


class ActorCnnPolicy(ActorPolicy):
    """:class:`ActorPolicy` with a NatureCNN in front, for image observations."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("features_extractor_class", NatureCNN)
        super().__init__(*args, **kwargs)


CnnPolicy = ActorCnnPolicy


class ActorMultiInputPolicy(ActorPolicy):
    """:class:`ActorPolicy` with a CombinedExtractor in front, for Dict observations."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("features_extractor_class", CombinedExtractor)
        super().__init__(*args, **kwargs)


MultiInputPolicy = ActorMultiInputPolicy


def layers_of_the_actor(net_arch: object) -> list[int]:
    """Parse the actor's hidden layer sizes from any of SB3's forms.

    :param net_arch: ``[64, 64]``, ``dict(pi=[64, 64], vf=...)``, or that dict in a list as before SB3 1.8
    :raises ValueError: unless all sizes are whole numbers of at least 1
    """
    if isinstance(net_arch, list) and len(net_arch) == 1 and isinstance(net_arch[0], dict):
        warnings.warn(f"net_arch={net_arch} is SB3's form before version 1.8: pass {net_arch[0]}.", UserWarning, stacklevel=3)
        net_arch = net_arch[0]
    layers = net_arch.get("pi", []) if isinstance(net_arch, dict) else net_arch
    if not isinstance(layers, list | tuple) or len(layers) > 100 or not all(LAYER.fine(n) for n in layers):
        raise ValueError(
            f"policy_kwargs: net_arch={shown(net_arch)} must be a list of layer sizes from 1 on, or a dict with 'pi'; up to "
            "100 layers of up to 16384."
        )
    if sum(int(n) * int(m) for n, m in itertools.pairwise(layers)) > MOST_WEIGHTS:
        raise ValueError(
            f"policy_kwargs: net_arch={shown(net_arch)} must not have more than {MOST_WEIGHTS:,} weights between its layers: "
            "make them smaller; [64, 64] is usual."
        )
    return [int(n) for n in layers]


def through(layer: nn.Module, x: th.Tensor) -> th.Tensor:
    """Compute ``layer(x)``. Without hooks it skips the module's call, a third of a small layer's time."""
    return layer(x) if hooked(layer) else layer.forward(x)  # type: ignore[no-any-return]


def hooked(layer: nn.Module) -> bool:
    """Whether a layer has hooks."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)


class Layers(nn.Sequential):
    """Sequence of layers with fast calls."""

    def forward(self, x: th.Tensor) -> th.Tensor:
        for layer in self:
            x = layer(x) if hooked(layer) else layer.forward(x)
        return x
