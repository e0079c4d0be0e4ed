"""The discount that goes with a time limit."""

from __future__ import annotations

#: Bounds of the horizon ``1 / (1 - gamma)``, in env steps; time limits of LONGEST and more have the longest.
SHORTEST = 20.0
LONGEST = 200.0


def discount_for(time_limit: int | None) -> float:
    """Discount for an env that cuts its episodes: the horizon is 200 steps, less where an episode is shorter than that.

    Where a time limit cuts an episode the return goes on with the baseline's value (Pardo et al. 2018, "Time Limits in
    Reinforcement Learning", section 4). With a horizon h and a limit T, ``h / T * (1 - exp(-T / h))`` of the discounted steps
    lie there, on average over an episode: steps that no rollout shows and no evaluation counts. They cost little at
    h = T = 200 (Pendulum-v1) and much where T is shorter still, so the horizon falls faster than the limit: ``T^2 / 200``, at
    least 20. Measured at limits of 50, 100, 200 and more (docs/studies/settings.md); in between it is interpolation.

    :param time_limit: env steps after which episodes are cut, at least 1; None: unknown, or none
    :return: in [0.95, 0.995]
    """
    horizon = LONGEST if time_limit is None else min(max(time_limit**2 / LONGEST, SHORTEST), LONGEST)
    return 1.0 - 1.0 / horizon
