"""Causal discovery and optimisation by experiment. Importing this registers ``CausalIntervention-v0``.

Making the env needs networkx.
"""

import gymnasium as gym

ENV_ID = "CausalIntervention-v0"


def make_causal_env(**kwargs: object) -> gym.Env:
    """Make ``CausalIntervention-v0``; arguments as in ``sb_grpo.tasks.causal.env.CausalInterventionEnv``.

    :raises ImportError: without networkx, naming the extra to install
    """
    try:
        import networkx  # noqa: F401
    except ImportError as error:
        raise ImportError(f"{ENV_ID} needs networkx: pip install -e '.[causal]'") from error
    from sb_grpo.tasks.causal.env import CausalInterventionEnv

    return CausalInterventionEnv(**kwargs)  # type: ignore[arg-type]


if ENV_ID not in gym.registry:
    gym.register(ENV_ID, entry_point="sb_grpo.tasks.causal:make_causal_env")
