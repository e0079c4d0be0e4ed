"""Tasks whose actions are tokens: checkable questions and scenarios in several turns (docs/words.md).

Importing this registers them with Gymnasium. reasoning-gym (the extra ``[text]``) is imported when its env is made.
"""

import gymnasium as gym

_HERE = "sb_grpo.tasks.text"

_TASKS = {"ReasoningGym-v0": f"{_HERE}.questions:ReasoningGym", "TextScenario-v0": f"{_HERE}.scenarios:TextScenario"}


def register() -> None:
    """Register the ids with Gymnasium; safe to call twice."""
    for env_id, entry_point in _TASKS.items():
        if env_id not in gym.registry:
            gym.register(env_id, entry_point=entry_point)


register()
