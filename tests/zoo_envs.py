"""Registered with ``--gym-packages zoo_envs``: envs that break in a step, or in a process of their own, or that pay."""

import multiprocessing

import gymnasium as gym
from helpers import ProbeEnv


class FragileEnv(ProbeEnv):
    """Raises at one step of all that the instances of this process take together."""

    steps_of_all = 0

    def __init__(self, breaks_at: int = 400, render_mode: str | None = None) -> None:
        super().__init__("action")
        self.breaks_at = breaks_at

    def step(self, action):
        FragileEnv.steps_of_all += 1
        if FragileEnv.steps_of_all == self.breaks_at:
            raise RuntimeError("the arm fell off")
        return super().step(action)


class PayingEnv(ProbeEnv):
    """Pays the same at every step, and notes in a file that it was made."""

    def __init__(self, pays: float = 1.0, made: str = "", render_mode: str | None = None) -> None:
        super().__init__("constant")
        self.pays = pays
        if made:
            with open(made, "a") as file:
                file.write("made\n")

    def step(self, action):
        obs, _, terminated, truncated, info = super().step(action)
        return obs, self.pays, terminated, truncated, info


class UnbuiltEnv(ProbeEnv):
    """Cannot be built in a process of its own."""

    def __init__(self, render_mode: str | None = None) -> None:
        if multiprocessing.parent_process() is not None:
            raise OSError("no licence for a second simulator")
        super().__init__("constant")


class UnreachedEnv(ProbeEnv):
    """Does not reach its simulator."""

    def __init__(self, render_mode: str | None = None) -> None:
        raise ConnectionRefusedError("no simulator at port 5")


class PartsEnv(ProbeEnv):
    """Observes by name."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__("constant")
        self.observation_space = gym.spaces.Dict({"all": self.observation_space})

    def _obs(self):
        return {"all": super()._obs()}


gym.register("Fragile-v0", FragileEnv)
gym.register("Paying-v0", PayingEnv)
gym.register("Parts-v0", PartsEnv)
gym.register("Unbuilt-v0", UnbuiltEnv)
gym.register("Unreached-v0", UnreachedEnv)
