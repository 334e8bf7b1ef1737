"""Environments with faults such as people bring: `--env=faulty_environments:Faulty/NAME-v0` with this folder on
PYTHONPATH. Episodes of 20 steps, of which action 1 is the right one: a reward of 1."""

import os
import threading
import time

import gymnasium
import numpy as np
from gymnasium import spaces

ENTRY = "faulty_environments"


class Plain(gymnasium.Env):
    """Observes the number of the game and of the step in it."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    action_space, observation_space = spaces.Discrete(2), spaces.Box(-np.inf, np.inf, (2,), np.float32)
    length = 20

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.game = self.t = self.total = 0

    def observe(self):
        return np.array([self.game, self.t], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.game, self.t = self.game + 1, 0
        return self.observe(), {}

    def reward(self, action):
        return float(action == 1)

    def step(self, action):
        self.t, self.total = self.t + 1, self.total + 1
        return self.observe(), self.reward(action), self.t >= self.length, False, {}

    def render(self):
        return np.full((64, 64, 3), self.t * 10 % 255, np.uint8)


class RareNanReward(Plain):
    """The 8th step of every tenth game."""

    def reward(self, action):
        return float("nan") if (self.game % 10, self.t) == (3, 8) else float(action == 1)


class RareInfReward(Plain):
    def reward(self, action):
        return float("inf") if (self.game % 10, self.t) == (3, 8) else float(action == 1)


class RareHugeReward(Plain):
    """Beyond float32."""

    def reward(self, action):
        return -1e40 if (self.game % 10, self.t) == (3, 8) else float(action == 1)


class RareNoReward(Plain):
    def reward(self, action):
        return None if (self.game % 10, self.t) == (3, 8) else float(action == 1)


class RareNanObservation(Plain):
    def observe(self):
        return super().observe() * (np.nan if (self.game % 10, self.t) == (3, 8) else 1)


class RareNanStart(Plain):
    """The first observation of every tenth game."""

    def observe(self):
        return super().observe() * (np.nan if (self.game % 10, self.t) == (3, 0) else 1)


class SeededNan(Plain):
    """What it observes and whether its seventh step is bad depends on its seed alone."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.game = int(self.np_random.integers(100))
        return self.observe(), {}

    def reward(self, action):
        return float("nan") if (self.game % 3, self.t) == (0, 7) else float(action == 1)


class SeventhNan(Plain):
    """The reward at step 8 or the observation at step 5 of every seventh game."""

    def reward(self, action):
        return float("nan") if (self.game % 7, self.t) == (2, 8) else float(action == 1)

    def observe(self):
        return super().observe() * (np.inf if (self.game % 7, self.t) == (5, 5) else 1)


class BreaksDown(Plain):
    """From step 100 on all that it gives is NaN."""

    def observe(self):
        return super().observe() * (np.nan if self.total >= 100 else 1)


class OftenNanReward(Plain):
    """One step in five."""

    def reward(self, action):
        return float("nan") if self.total % 5 == 4 else float(action == 1)


class StrangeLives(Plain):
    """An info of its own that Atari's happens to share a name with."""

    def step(self, action):
        *rest, _ = super().step(action)
        return *rest, {"lives": "three" if self.t % 3 else 3}


class RaggedInfo(Plain):
    """Says beside how many moves there are, as arrays of different lengths; is asked for no options."""

    def reset(self, *, seed=None, options=None):
        assert options is None
        return super().reset(seed=seed)

    def step(self, action):
        *rest, _ = super().step(action)
        return *rest, {"moves": np.arange(1 + action)}


class NoEnd(Plain):
    length = 10**12


class NoRenderMode(Plain):
    def __init__(self):
        super().__init__()


class StuckReset(Plain):
    """A game does not begin while there is no file `free` in the current folder, but for the first ten."""

    def reset(self, **options):
        while self.game >= 10 and not os.path.exists("free"):
            time.sleep(0.05)
        return super().reset(**options)


class RaisingReset(Plain):
    def reset(self, **kwargs):
        raise FileNotFoundError("map.csv: no such level file")


class Dies(Plain):
    """Ends its process at action 1."""

    def reward(self, action):
        if action == 1:
            os._exit(7)
        return 0.0


class DiesInReset(Plain):
    """Action 1 ends a game; a process ends instead of beginning its second one."""

    def reset(self, **options):
        if self.game:
            os._exit(7)
        return super().reset(**options)

    def step(self, action):
        observation, reward, _, *rest = super().step(action)
        return observation, reward, bool(action == 1), *rest


class Raises(Plain):
    def reward(self, action):
        if action == 1:
            raise ValueError("no such level")
        return 0.0


class Hangs(Plain):
    def reward(self, action):
        if action == 1:
            threading.Event().wait()
        return 0.0


class Needy(Plain):
    """Raises gymnasium's own error for a reason of its own."""

    def __init__(self, render_mode=None):
        raise gymnasium.error.Error("no licence key in LICENCE_KEY")


RARE = ("RareNanReward", "RareInfReward", "RareHugeReward", "RareNoReward", "RareNanObservation")

for _class in list(globals().values()):
    if isinstance(_class, type) and issubclass(_class, Plain):
        gymnasium.register(f"Faulty/{_class.__name__}-v0", f"{ENTRY}:{_class.__name__}")
