"""Training tasks: causal, input-driven, memory, multi-task, scheduling and routing, text, third-party.

The algorithm imports none of them. Importing this registers their ids with Gymnasium, and their tensor versions with
:func:`sb_grpo.envs.make_tensor_env`. Entry points are strings: a task is imported when it is made.
"""

import gymnasium as gym

from sb_grpo.envs.native import TENSOR_VERSIONS
from sb_grpo.tasks import causal, input_driven, memory, text  # noqa: F401  # they register their ids
from sb_grpo.tasks.multi_task import register_suites
from sb_grpo.tasks.third_party import register_third_party

register_suites()
register_third_party()
if "MountainCarGoal-v0" not in gym.registry:
    gym.register("MountainCarGoal-v0", entry_point="sb_grpo.tasks.goal_car:GoalCar", max_episode_steps=200)

#: Scheduling, routing and packing: id -> entry point of the tensor version. Their episodes end by themselves.
PROBLEMS = {
    "JobShop-v0": "sb_grpo.tasks.scheduling:JobShop",
    "DynamicJobShop-v0": "sb_grpo.tasks.scheduling:DynamicJobShop",
    "CVRP-v0": "sb_grpo.tasks.uncertain:CVRP",
    "Knapsack-v0": "sb_grpo.tasks.uncertain:Knapsack",
}
for env_id, entry in PROBLEMS.items():
    if env_id not in gym.registry:
        gym.register(env_id, entry_point="sb_grpo.tasks.host_problem:HostProblem", kwargs={"problem": entry})

TENSOR_VERSIONS.update(PROBLEMS)
TENSOR_VERSIONS.update(input_driven.TENSOR_VERSIONS)
TENSOR_VERSIONS.update(memory.TENSOR_VERSIONS)
TENSOR_VERSIONS["CartPoleTasks-v0"] = "sb_grpo.tasks.multi_task_tensor:CartPoleTasks"
TENSOR_VERSIONS["PendulumTasks-v0"] = "sb_grpo.tasks.multi_task_tensor:PendulumTasks"
