"""A SimPy model as a Gymnasium env: a clinic with two doctors, where each arriving patient is sent to one of the queues."""

import gymnasium as gym
import numpy as np
import simpy
from gymnasium import spaces
from stable_baselines3.common.evaluation import evaluate_policy

from sb_grpo import GRPO
from sb_grpo.envs import noise_alignment

N_PATIENTS, SPEEDS = 150, (1.0, 0.5)  # the second doctor needs twice as long


class Clinic(gym.Env):
    """Action: which doctor. Reward: minus the hours that patients spend in the clinic until the next one arrives."""

    observation_space = spaces.Box(0.0, np.inf, (3,), np.float32)  # patients at each doctor, work that this one brings
    action_space = spaces.Discrete(len(SPEEDS))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        # One stream per purpose, all of the episode's luck at once: patient i has the same gap and work, whatever is decided.
        arrivals, treatments = self.np_random.spawn(2)
        self.gaps = arrivals.exponential(1.0, N_PATIENTS + 1)
        self.work = treatments.lognormal(-0.5, 1.0, N_PATIENTS + 1)
        self.clock, self.patient, self.hours, self.since = simpy.Environment(), 0, 0.0, 0.0
        self.doctors, self.present = [simpy.Resource(self.clock) for _ in SPEEDS], [0] * len(SPEEDS)
        return self.observe(), {}

    def observe(self):
        return np.array([*self.present, self.work[self.patient]], dtype=np.float32)

    def count(self, doctor, change):
        self.hours += sum(self.present) * (self.clock.now - self.since)
        self.since = self.clock.now
        self.present[doctor] += change

    def treat(self, doctor, work):  # a SimPy process
        self.count(doctor, +1)
        with self.doctors[doctor].request() as turn:
            yield turn
            yield self.clock.timeout(work / SPEEDS[doctor])
        self.count(doctor, -1)

    def step(self, action):
        self.clock.process(self.treat(int(action), self.work[self.patient]))
        self.patient, before = self.patient + 1, self.hours
        self.clock.run(until=self.clock.now + self.gaps[self.patient])  # to the next arrival: the next decision
        self.count(0, 0)
        return self.observe(), before - self.hours, False, self.patient == N_PATIENTS, {}


if __name__ == "__main__":
    print(noise_alignment(Clinic, n_steps=N_PATIENTS).sentence)
    model = GRPO("MlpPolicy", Clinic(), n_steps=2048, learning_rate=1e-3, seed=0)
    print("before:", evaluate_policy(model, model.get_env(), 30))
    print("after: ", evaluate_policy(model.learn(50_000), model.get_env(), 30))
