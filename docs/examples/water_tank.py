"""A plain Gymnasium env, complete: docs/own_env.md trains on it."""

import gymnasium as gym
import numpy as np


class WaterTank(gym.Env):
    """Keep a tank half full while customers take water. Observed: the level. Action: the inflow, -1 none, 1 full."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # seeds self.np_random
        self.level = self.np_random.uniform()
        return np.array([self.level], np.float32), {}

    def step(self, action):
        demand = self.np_random.uniform(0.0, 0.1)  # one draw per step, whatever the action
        self.level = float(np.clip(self.level + 0.05 * (1.0 + action[0]) - demand, 0.0, 1.0))
        return np.array([self.level], np.float32), 1.0 - 2.0 * abs(self.level - 0.5), False, False, {}


gym.register("WaterTank-v0", entry_point="water_tank:WaterTank", max_episode_steps=100)
