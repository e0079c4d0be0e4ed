"""Tasks with returns dominated by noise from arrivals, demand, prices or wind.

Importing this registers them with Gymnasium. ``TENSOR_VERSIONS`` are known to ``make_tensor_env``.
"""

import gymnasium as gym

_HERE = "sb_grpo.tasks.input_driven"

#: Entry points of host and tensor version, and steps of an episode. Strings, because an env is imported when it is made.
_TASKS = {
    "LoadBalancing-v0": (f"{_HERE}.load_balancing:LoadBalancing", f"{_HERE}.load_balancing:TensorLoadBalancing", 200),
    "QueueRouting-v0": (f"{_HERE}.queue_routing:QueueRouting", f"{_HERE}.queue_routing:TensorQueueRouting", 150),
    "Inventory-v0": (f"{_HERE}.inventory:Inventory", f"{_HERE}.inventory:TensorInventory", 100),
    "BatteryArbitrage-v0": (f"{_HERE}.battery:BatteryArbitrage", f"{_HERE}.battery:TensorBatteryArbitrage", 168),
    "DisturbedPendulum-v0": (f"{_HERE}.pendulum:DisturbedPendulum", f"{_HERE}.pendulum:TensorDisturbedPendulum", 200),
}

#: Entry point of the tensor version by id.
TENSOR_VERSIONS = {env_id: tensor for env_id, (_, tensor, _) in _TASKS.items()}

#: All ids; the lander's Box2D has no tensor version.
INPUT_DRIVEN = (*_TASKS, "WindyLunarLander-v3")


def register() -> None:
    """Register the ids with Gymnasium; safe to call twice."""
    if "WindyLunarLander-v3" in gym.registry:
        return
    for env_id, (host, _, steps) in _TASKS.items():
        gym.register(env_id, entry_point=host, max_episode_steps=steps)
    lander = gym.spec("LunarLander-v3")
    gym.register(
        "WindyLunarLander-v3",
        entry_point=lander.entry_point,
        max_episode_steps=lander.max_episode_steps,
        reward_threshold=lander.reward_threshold,
        kwargs={"enable_wind": True},
    )


register()
