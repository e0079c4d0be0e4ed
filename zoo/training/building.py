"""A run of the zoo from Python."""

from __future__ import annotations

from argparse import Namespace

from ..common.plain_files import HYPERPARAMS
from .experiment import Experiment, register


def build(
    env_id: str,
    seed: int,
    log_folder: str,
    algo: str = "grpo",
    n_timesteps: int = -1,
    config: str | None = None,
    device: str = "auto",
    **hyperparams: object,
) -> Experiment:
    """A run from Python.

    :param env_id: registered env id
    :param seed: of the run
    :param log_folder: where its folder goes
    :param algo: any algorithm that rl_zoo3 knows
    :param n_timesteps: in place of the file's
    :param config: the file; None: ``zoo/hyperparams/grpo.yml``, or rl_zoo3's of the algorithm
    :param device: as SB3's
    :param hyperparams: in place of the file's
    :return: the experiment; ``setup_experiment()`` gives the model
    """
    register()
    return Experiment(
        Namespace(env=env_id, seed=seed, algo=algo),
        algo,
        env_id,
        log_folder,
        n_timesteps=n_timesteps,
        eval_freq=-1,
        hyperparams=hyperparams,
        seed=seed,
        log_interval=-2,
        verbose=0,
        config=config or (str(HYPERPARAMS) if algo == "grpo" else None),
        device=device,
    )
