"""Default discount for a time limit."""

from __future__ import annotations

#: Bounds of the horizon ``1 / (1 - gamma)``, in env steps. Time limits of LONGEST or more get the longest.
SHORTEST = 20.0
LONGEST = 200.0


def discount_for(time_limit: int | None) -> float:
    """Discount for an env with a time limit: a horizon of 200 steps, shorter if episodes are shorter.

    After a cut the return continues with the baseline's value (Pardo et al. 2018, "Time Limits in Reinforcement Learning",
    section 4). With a horizon h and a limit T, ``h / T * (1 - exp(-T / h))`` of the discounted steps lie after the cut, on
    average over an episode. No rollout shows these steps and no evaluation counts them. They cost little at h = T = 200
    (Pendulum-v1) and much at shorter limits, so the horizon falls faster than the limit: ``T^2 / 200``, at least 20. Measured
    at limits of 50, 100, 200 and more (docs/studies/settings.md); interpolated between them.

    :param time_limit: env steps after which episodes are cut, at least 1; None: unknown or no limit
    :return: in [0.95, 0.995]
    """
    horizon = LONGEST if time_limit is None else min(max(time_limit**2 / LONGEST, SHORTEST), LONGEST)
    return 1.0 - 1.0 / horizon
