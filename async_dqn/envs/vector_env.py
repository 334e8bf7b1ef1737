"""N environments in lock-step that start over by themselves, and can go back to where they once stood."""

import collections
import time
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from async_dqn.base import types
from async_dqn.base.errors import RunFailed
from async_dqn.envs.spec import EnvironmentSpec

# Multiples of it, 2^30 over the golden ratio, lie far apart modulo 2^30, and so do the seeds of an environment.
_SEED_STRIDE = 663_608_941

# Bad values end the run where more than `_MOST_BAD` came in the last `_WINDOW` agent steps.
_WINDOW, _MOST_BAD = 1_000, 100
# A game without an end is not played again, nor its actions kept: new games begin.
_MOST_RECORDED = 200_000  # vector steps
_MOST_SECONDS = 60.0  # that playing them again may take
_LARGEST = float(np.finfo(np.float32).max)


class VectorEnv:
    """N environments that start over by themselves, so that every step of each is a real agent step.

    It adds limits, lost lives and whole-game scores to a plain vector of environments.

    What ended is reset by a mask right after the step, so that no environment ever starts over by itself. At
    the end of an Atari game `next_observation` is the last frame that was rendered, as in gymnasium's
    AtariPreprocessing, at most one step old; nothing is learned from it.

    Under the classic protocol a lost life terminates the training episode only. The game goes on; where a new
    ball needs FIRE (Breakout) the agent has to press it, as in Mnih et al. 2015. Zero lives in a game that
    goes on, as Q*bert shows for a few frames, are not a loss of their own.

    The games that an environment plays from one seed are a series. It ends with the first game over after
    `steps_per_seed` steps; with 0, every game has a seed of its own. What a series does depends on its seed and its
    actions alone, so these two are all that is saved.

    Rewards and observations are checked where they come in: see `types.BadValue` and `types.StepResult`. Too many bad
    ones raise RunFailed.
    """

    def __init__(
        self,
        environments: Any,  # a gymnasium.vector.VectorEnv, or one that has send() and recv() in place of step()
        spec: EnvironmentSpec,
        num_envs: int,
        seed: int,
        steps_per_seed: int = 0,
    ):
        self.spec = spec
        self.num_envs = num_envs
        self._environments = environments
        self._seed = seed % 2**30
        self._steps_per_seed = steps_per_seed
        self._is_parallel = hasattr(environments, "send")
        self._max_length = spec.max_episode_steps or np.inf
        self._life_ends_episode = spec.protocol == "classic"
        self._lives = np.zeros(num_envs, np.int32)
        self._returns = np.zeros(num_envs, np.float64)  # of the games so far
        self._lengths = np.zeros(num_envs, np.int64)
        self._observation = np.zeros((num_envs, *spec.observation_shape), spec.observation_dtype)
        self._each = np.arange(num_envs)
        self._sent: np.ndarray | None = None  # actions under way
        self._blind: dict[int, types.BadValue] = {}  # games whose first observation was bad
        self._num_steps = 0  # agent steps
        self._bad_at: collections.deque[int] = collections.deque(maxlen=_MOST_BAD + 1)  # of them
        self._series = np.full(num_envs, -1)
        self._series_steps = np.zeros(num_envs, np.int64)
        dtype = spec.action_dtype if spec.is_continuous else np.min_scalar_type(spec.num_actions - 1)
        self._actions = np.zeros((num_envs, 1024, *spec.action_shape), dtype)  # of the series

    def reset(self) -> np.ndarray:
        """Starts every episode anew, each from a new seed; gives the first observations [N, ...]."""
        everywhere = np.ones(self.num_envs, bool)
        self._series += 1
        return self._start(everywhere, seeded=everywhere)

    def send(self, actions: np.ndarray) -> None:
        """Begins to take one action in each environment.

        Args:
          actions: [N] integers in [0, num_actions), or [N, D] floats where they are continuous; else ValueError.

        Emulators, and environments in processes, do it while this process goes on; `receive` must come next.
        """
        if self._sent is not None:
            raise RuntimeError("actions were sent already; receive() must come first")
        self._sent = self._checked(actions)
        if self._is_parallel:
            self._environments.send(self._sent)

    def receive(self) -> types.StepResult:
        """What the actions sent led to.

        An ended episode starts over within the step: its last observation is in `next_observation`, the first
        of the next one in `observation`. The arrays belong to the caller; the two are the same array after a
        step in which no episode ended. `terminated` and `truncated` are never both set.
        """
        if self._sent is None:
            raise RuntimeError("there is nothing to receive; send() must come first")
        actions, self._sent = self._sent, None
        stepped = self._environments.recv() if self._is_parallel else self._environments.step(actions)
        next_observation, reward, game_over, cut, info = stepped
        next_observation = self._canonical(next_observation)
        self._record(actions)
        self._lengths += 1
        bad = self._find_bad(next_observation, reward) | self._blind
        self._check_share(bad.values())
        if lost := getattr(self._environments, "lost", ""):
            bad = {i: types.BadValue(i, int(self._lengths[i]), lost, None) for i in range(self.num_envs)}
        spoilt = np.isin(self._each, list(bad))
        if bad:
            next_observation, reward = next_observation.copy(), np.where(spoilt, 0, reward)
            next_observation[spoilt] = self._observation[spoilt]
            game_over, cut = game_over & ~spoilt, cut & ~spoilt
        self._returns += reward

        terminated = game_over
        if self._life_ends_episode:
            terminated = game_over | ((info["lives"] > 0) & (info["lives"] < self._lives))
        cut = cut | ((self._lengths >= self._max_length) & ~spoilt)
        ended = game_over | cut
        self._lives = self._lives_in(info)
        observation, episodes = next_observation, []
        if ended.any() or spoilt.any():
            episodes = [
                types.Episode(int(i), float(self._returns[i]), int(self._lengths[i])) for i in np.flatnonzero(ended)
            ]
            ended |= spoilt
            seeded = ended & (self._series_steps >= self._steps_per_seed)
            self._series += seeded
            observation = self._start(ended, seeded)
        else:
            self._observation[:] = observation
        return types.StepResult(
            observation,
            next_observation,
            reward.astype(np.float32),
            terminated,
            cut & ~terminated,
            episodes,
            [bad[i] for i in sorted(bad)],
        )

    def step(self, actions: np.ndarray) -> types.StepResult:
        """Sends and receives."""
        self.send(actions)
        return self.receive()

    def state(self) -> dict[str, np.ndarray]:
        """Where the environments stand, in plain arrays of some 10 KB each; only after `reset` or `restore`."""
        if self._series.min() < 0:
            raise RuntimeError("there is no state before reset()")
        taken = [row[:steps] for row, steps in zip(self._actions, self._series_steps, strict=True)]
        return self._identity() | {
            "series": self._series.copy(),  # [N], how many came before it
            "series_steps": self._series_steps.copy(),  # [N]
            "actions": np.concatenate(taken),  # [sum of series_steps, ...]
            "returns": self._returns.copy(),  # [N]
            "lengths": self._lengths.copy(),  # [N]
            "lives": self._lives.copy(),  # [N]
            "checksums": np.array([zlib.crc32(one) for one in self._observation]),  # [N]
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> np.ndarray:
        """Goes to where the environments stood at `state()`; gives the observations [N, ...] on which to act next.

        Every later step gives what it would have given there. The actions are played again, so it takes as long as
        they took.

        Raises:
          ValueError: the state is of other environments or another seed, then nothing was done; or the actions led
            elsewhere, as the environment depends on more than its seed, then `reset` must come next.
        """
        series, series_steps, taken = self._parsed(state)
        # All are to arrive with the last step, so those with fewer steps idle until their turn has come.
        num_steps = series_steps.max()
        idle = num_steps - series_steps
        actions = np.zeros((num_steps, self.num_envs, *self.spec.action_shape), taken.dtype)
        for i, own in enumerate(np.split(taken, np.cumsum(series_steps)[:-1])):
            actions[idle[i] :, i] = own

        self._series[:] = series
        observation = self._start(np.ones(self.num_envs, bool), seeded=idle == 0)
        end = time.monotonic() + _MOST_SECONDS
        for step in range(num_steps):
            if time.monotonic() > end:
                raise ValueError(
                    f"to play {num_steps:,} steps again takes more than {_MOST_SECONDS:.0f} s, in which it came to "
                    f"step {step:,}"
                )
            if self.spec.packing and (mask := self.spec.packing.mask):  # idle ones take what is allowed to them
                rows = idle > step
                actions[step, rows] = observation[rows, :mask].argmax(axis=1)
            observation = self.step(actions[step]).observation
            begins = idle == step + 1
            if begins.any():
                self._series[begins] = series[begins]
                observation = self._start(begins, seeded=begins)

        again = self.state()
        differing = [name for name in again if not np.array_equal(again[name], state[name])]
        if differing:
            raise ValueError(
                f"{self.spec.id} is not deterministic, or its version is another: the same seeds and actions led to "
                f"other {', '.join(differing)}"
            )
        self._bad_at.clear()  # they were counted when they came first
        return observation

    def close(self) -> None:
        """Frees the environments and their threads."""
        self._environments.close()
        vars(self._environments).pop("ale", None)  # the emulator threads end with this object

    def _start(self, mask: np.ndarray, seeded: np.ndarray) -> np.ndarray:
        """Starts a game where `mask` says, and with it the series where `seeded` says; gives all observations."""
        self._returns[mask] = self._lengths[mask] = 0
        self._series_steps[seeded] = 0
        seeds = (self._seed + self._each + self._series * _SEED_STRIDE) % 2**30
        seed: Any = np.where(seeded, seeds, -1)[mask]
        if not self.spec.is_atari:  # gymnasium wants one for each, and another sign for none
            seed = [int(one) if new else None for one, new in zip(seeds, seeded, strict=True)]
        observation, info = self._environments.reset(seed=seed, options={"reset_mask": mask})
        self._lives = self._lives_in(info)
        observation = self._canonical(observation)
        self._blind = self._find_bad(observation, np.zeros(self.num_envs))
        if self._blind:
            observation = observation.copy()
            observation[list(self._blind)] = 0
        self._observation[:] = observation
        return observation

    def _lives_in(self, info: Mapping[str, Any]) -> np.ndarray:
        # Other environments may mean something else by the name.
        return info["lives"] if self.spec.is_atari else self._lives

    def _find_bad(self, observation: np.ndarray, reward: np.ndarray) -> dict[int, types.BadValue]:
        """The first bad value of each environment that has one."""
        sound = np.abs(reward) <= _LARGEST  # false where it is NaN
        if self.spec.packing:
            observation = self.spec.packing.vectors(observation)
        if sound.all() and (observation.dtype.kind != "f" or np.isfinite(observation).all()):
            return {}
        found: dict[int, types.BadValue] = {}
        for i in range(self.num_envs):
            value = "reward", float(reward[i])
            if sound[i]:
                places = np.argwhere(~np.isfinite(observation[i]))
                if not len(places):
                    continue
                place = tuple(map(int, places[0]))
                value = f"observation[{', '.join(map(str, place))}]", float(observation[i][place])
            found[i] = types.BadValue(i, int(self._lengths[i]), *value)
        return found

    def _check_share(self, bad: Iterable[types.BadValue]) -> None:
        """Raises RunFailed where there were too many of late."""
        self._num_steps += self.num_envs
        for value in bad:
            self._bad_at.append(self._num_steps)
            if len(self._bad_at) > _MOST_BAD and self._num_steps - self._bad_at[0] < _WINDOW:
                raise RunFailed(
                    f"{value.described(self.spec.id)}, and so it was in more than {_MOST_BAD} of the last {_WINDOW:,} "
                    "steps of this process; from such data nothing can be learned"
                )

    def _record(self, actions: np.ndarray) -> None:
        if self._series_steps.max() >= _MOST_RECORDED:
            rows = np.flatnonzero(self._series_steps < _MOST_RECORDED)
            self._actions[rows, self._series_steps[rows]] = actions[rows]
            self._series_steps += 1
            return
        if self._series_steps.max() == self._actions.shape[1]:
            self._actions = np.concatenate([self._actions, np.zeros_like(self._actions)], axis=1)
        self._actions[self._each, self._series_steps] = actions
        self._series_steps += 1

    def _identity(self) -> dict[str, np.ndarray]:
        """What two objects must have in common to exchange states."""
        spec = self.spec
        return {
            "environment": np.array(
                " ".join([spec.id, spec.protocol, *spec.options.texts(), f"of at most {spec.max_episode_steps} steps"])
            ),
            "num_envs": np.array(self.num_envs),
            "seed": np.array(self._seed),
        }

    def _parsed(self, state: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Series, their steps and actions of a state that this object can try to restore, else ValueError."""
        for name, ours in self._identity().items():
            if name not in state or not np.array_equal(state[name], ours):
                raise ValueError(f"the state has {name}={state.get(name)}, here it is {ours}")
        if np.max(state.get("series_steps", 0)) > _MOST_RECORDED:
            raise ValueError(f"a game has gone on for more than {_MOST_RECORDED:,} steps, which are not played again")
        for name in ("series", "series_steps", "actions", "returns", "lengths", "lives", "checksums"):
            shape: tuple[int, ...] = (self.num_envs,)
            if name == "actions":
                shape = (int(np.sum(state["series_steps"])), *self.spec.action_shape)
            if name not in state or np.shape(state[name]) != shape:
                given = np.shape(state[name]) if name in state else "missing"
                raise ValueError(f"the state's {name} must have the shape {shape}, is {given}")
        series, series_steps, taken = (np.asarray(state[name]) for name in ("series", "series_steps", "actions"))
        return series, series_steps, taken

    def _canonical(self, observation: np.ndarray) -> np.ndarray:
        shape = (self.num_envs, *self.spec.observation_shape)
        return observation.reshape(shape).astype(self.spec.observation_dtype, copy=False)

    def _checked(self, actions: np.ndarray) -> np.ndarray:
        actions = np.asarray(actions)
        if self.spec.is_continuous:
            if actions.shape != (self.num_envs, *self.spec.action_shape):
                raise ValueError(f"actions must be {self.num_envs} vectors {self.spec.action_shape}, got {actions!r}")
            return actions.astype(np.float32, copy=False)
        valid = actions.shape == (self.num_envs,) and np.issubdtype(actions.dtype, np.integer)
        # An action out of range would leave the emulator's threads waiting for ever.
        if not valid or actions.min() < 0 or actions.max() >= self.spec.num_actions:
            raise ValueError(
                f"actions must be {self.num_envs} integers in [0, {self.spec.num_actions}), got {actions!r}"
            )
        return actions.astype(np.int64, copy=False)


class NoEnvironments:
    """What a worker that does not act has in place of a `VectorEnv`."""

    def reset(self) -> np.ndarray:
        return np.empty(0)

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def restore(self, state: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.empty(0)

    def close(self) -> None:
        pass
