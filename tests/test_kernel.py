"""The features of states that the state baseline is fitted on."""

import torch as th

from sb_grpo import AdvantageOptions
from sb_grpo.baselines.state import StateBaseline
from tests.test_baseline import rollout_of


def test_the_fit_does_not_grow_with_very_wide_inputs():
    wide = StateBaseline(3000)
    assert wide.phi.size == 1 + 512 + 512
    th.manual_seed(0)
    direction = th.nn.functional.normalize(th.randn(3000), dim=0)
    inputs = [th.randn(800, 40) @ th.randn(40, 3000, generator=th.Generator().manual_seed(1)) for _ in range(6)]
    for x in inputs:  # forty things that 3000 sensors show
        _, explained = wide.advantages(rollout_of(x, x @ direction), AdvantageOptions(normalize="none"), x, x)
    assert explained > 0.9
