"""N environments in lock-step: the Atari protocols, and any gymnasium id with discrete actions."""

import difflib
import re
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import ale_py
import gymnasium
import numpy as np
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from async_dqn import types
from async_dqn.errors import UserError

# How a game starts and what makes it random. `classic`: Mnih et al. 2015, and FIRE for the first frame where
# a game has it. `machado`: Machado et al. 2018, section 5, as in Dopamine.
_ATARI_PROTOCOLS: dict[str, dict[str, Any]] = {
    "classic": {"noop_max": 30, "use_fire_reset": True, "repeat_action_probability": 0.0},
    "machado": {"noop_max": 0, "use_fire_reset": False, "repeat_action_probability": 0.25},
}
_ATARI_FRAME_SKIP = 4

# An emulator is seeded by loading its ROM anew, which takes a tenth of a second, most of it for a table of blended
# colours that nothing here reads. So its games share a seed until this many steps were played from it.
_ATARI_STEPS_PER_SEED = 5_000

# Multiples of it, 2^30 over the golden ratio, lie far apart modulo 2^30, and so do the seeds of an environment.
_SEED_STRIDE = 663_608_941


@dataclass(frozen=True)
class EnvironmentSpec:
    """What a run needs to know of its environment before it makes one."""

    id: str  # canonical, as gymnasium registers it: "ALE/Pong-v5", "CartPole-v1"
    is_atari: bool
    protocol: str  # "classic" or "machado"; "none" where it is not Atari
    num_actions: int
    observation_shape: tuple[int, ...]  # of one observation: a single grey frame on Atari, else a vector
    observation_dtype: np.dtype  # uint8 on Atari, else float32
    frame_skip: int  # emulator frames in an agent step
    stack: int  # observations that the network sees at once
    max_episode_steps: int | None  # agent steps after which an episode is truncated


class VectorEnv(Protocol):
    """N environments that start over by themselves, so that every step of each is a real agent step."""

    spec: EnvironmentSpec
    num_envs: int

    def reset(self) -> np.ndarray:
        """Starts every episode anew, each from a new seed; gives the first observations [N, ...]."""

    def step(self, actions: np.ndarray) -> types.StepResult:
        """Takes one integer action in each environment ([N], each in [0, num_actions)), else ValueError.

        An ended episode starts over within the step: its last observation is in `next_observation`, the first
        of the next one in `observation`. The arrays belong to the caller; the two are the same array after a
        step in which no episode ended. `terminated` and `truncated` are never both set.
        """

    def state(self) -> dict[str, np.ndarray]:
        """Where the environments stand, in plain arrays of some 10 KB each; only after `reset` or `restore`."""

    def restore(self, state: Mapping[str, np.ndarray]) -> np.ndarray:
        """Goes to where the environments stood at `state()`; gives the observations [N, ...] on which to act next.

        Every later step gives what it would have given there. The actions are played again, so it takes as long as
        they took.

        Raises:
          ValueError: the state is of other environments or another seed, then nothing was done; or the actions led
            elsewhere, as the environment depends on more than its seed, then `reset` must come next.
        """

    def close(self) -> None:
        """Frees the environments and their threads."""


def resolve(id: str, protocol: str) -> EnvironmentSpec:
    """Looks up an environment without starting a run.

    Args:
      id: an Atari game (`pong`, `MsPacman`, `ALE/Pong-v5`) or a gymnasium id (`CartPole-v1`, `module:My-v0`).
      protocol: "classic" or "machado"; other environments than Atari ignore it.

    Raises:
      UserError: the environment or the protocol is unknown, needs a package or a ROM that is missing, or has
        actions or observations that no agent here can use.
    """
    if protocol not in (*_ATARI_PROTOCOLS, "none"):
        raise _unknown_protocol(protocol)
    # The suffixes are those of the ids that gymnasium had before v5.
    match = re.fullmatch(r"(?:ALE/)?(\w+?)((?:-ram)?(?:NoFrameskip|Deterministic)?(?:-v\d+)?)", id)
    game = _atari_games().get(match[1].replace("_", "").lower()) if match else None
    if not match or not game:
        return _resolve_gymnasium(id)
    if match[2] not in ("", "-v5"):
        raise UserError(f"--env={id}: is an old Atari id: use {game} and the protocol classic or machado")
    if protocol not in _ATARI_PROTOCOLS:
        raise _unknown_protocol(protocol)
    return _resolve_atari(game, protocol)


def make_vector_env(
    spec: EnvironmentSpec,
    num_envs: int,
    seed: int,
    num_threads: int = 0,
    max_episode_steps: int | None = None,
) -> VectorEnv:
    """Makes N environments; the same seed and actions give the same frames, whatever the threads do.

    Args:
      spec: from `resolve`.
      num_envs: N. Environment i begins with the seed `seed + i`, and goes on with others that depend on both.
      seed: any integer, used modulo 2^30 as the emulator's seeds are 31 bits.
      num_threads: emulator threads on Atari, 0 for one per environment or core, whichever is fewer.
      max_episode_steps: agent steps after which an episode is truncated, in place of the limit in `spec`.
    """
    spec = replace(spec, max_episode_steps=max_episode_steps or spec.max_episode_steps)
    environments: gymnasium.vector.VectorEnv
    steps_per_seed = 0
    if spec.is_atari:
        # Emulators could end an episode at a lost life, but would start the game over, or at a limit, but
        # would not render its last frames. So they are only asked for the end of the game.
        environments = make_emulators(spec, num_envs, num_threads=num_threads)
        steps_per_seed = _ATARI_STEPS_PER_SEED
    else:
        environments = SyncVectorEnv([lambda: _make(spec.id)] * num_envs, autoreset_mode=AutoresetMode.DISABLED)
    return _VectorEnv(environments, spec, num_envs, seed, steps_per_seed)


def make_emulators(spec: EnvironmentSpec, num_envs: int, **options: Any) -> AtariVectorEnv:
    """Atari emulators that play by the protocol of `spec`; `options` say how they run and what they show."""
    return AtariVectorEnv(
        gymnasium.spec(spec.id).kwargs["game"],
        num_envs,
        max_num_frames_per_episode=2**30,  # none
        frameskip=_ATARI_FRAME_SKIP,
        stack_num=1,
        reward_clipping=False,
        **_ATARI_PROTOCOLS[spec.protocol],
        **options,
    )


class _VectorEnv:
    """The one `VectorEnv`: adds limits, lost lives and whole-game scores to a plain vector of environments.

    What ended is reset by a mask right after the step, so that no environment ever starts over by itself. At
    the end of an Atari game `next_observation` is the last frame that was rendered, as in gymnasium's
    AtariPreprocessing, at most one step old; nothing is learned from it.

    Under the classic protocol a lost life terminates the training episode only. The game goes on; where a new
    ball needs FIRE (Breakout) the agent has to press it, as in Mnih et al. 2015. Zero lives in a game that
    goes on, as Q*bert shows for a few frames, are not a loss of their own.

    The games that an environment plays from one seed are a series. It ends with the first game over after
    `steps_per_seed` steps; with 0, every game has a seed of its own. What a series does depends on its seed and its
    actions alone, so these two are all that is saved.
    """

    def __init__(
        self,
        environments: gymnasium.vector.VectorEnv,
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
        self._max_length = spec.max_episode_steps or np.inf
        self._life_ends_episode = spec.protocol == "classic"
        self._lives = np.zeros(num_envs, np.int32)
        self._returns = np.zeros(num_envs, np.float64)  # of the games so far
        self._lengths = np.zeros(num_envs, np.int64)
        self._observation = np.zeros((num_envs, *spec.observation_shape), spec.observation_dtype)
        self._each = np.arange(num_envs)
        self._series = np.full(num_envs, -1)
        self._series_steps = np.zeros(num_envs, np.int64)
        self._actions = np.zeros((num_envs, 1024), np.min_scalar_type(spec.num_actions - 1))  # of the series

    def reset(self) -> np.ndarray:
        everywhere = np.ones(self.num_envs, bool)
        self._series += 1
        return self._start(everywhere, seeded=everywhere)

    def step(self, actions: np.ndarray) -> types.StepResult:
        actions = self._checked(actions)
        next_observation, reward, game_over, cut, info = self._environments.step(actions)
        next_observation = self._canonical(next_observation)
        self._record(actions)
        self._returns += reward
        self._lengths += 1

        terminated = game_over
        if self._life_ends_episode:
            terminated = game_over | ((info["lives"] > 0) & (info["lives"] < self._lives))
        cut = cut | (self._lengths >= self._max_length)
        ended = game_over | cut
        self._lives = info.get("lives", self._lives)
        observation, episodes = next_observation, []
        if ended.any():
            episodes = [
                types.Episode(int(i), float(self._returns[i]), int(self._lengths[i])) for i in np.flatnonzero(ended)
            ]
            seeded = ended & (self._series_steps >= self._steps_per_seed)
            self._series += seeded
            observation = self._start(ended, seeded)
        else:
            self._observation[:] = observation
        return types.StepResult(
            observation, next_observation, reward.astype(np.float32), terminated, cut & ~terminated, episodes
        )

    def state(self) -> dict[str, np.ndarray]:
        if self._series.min() < 0:
            raise RuntimeError("there is no state before reset()")
        taken = [row[:steps] for row, steps in zip(self._actions, self._series_steps, strict=True)]
        return self._identity() | {
            "series": self._series.copy(),  # [N], how many came before it
            "series_steps": self._series_steps.copy(),  # [N]
            "actions": np.concatenate(taken),  # [sum of series_steps]
            "returns": self._returns.copy(),  # [N]
            "lengths": self._lengths.copy(),  # [N]
            "lives": self._lives.copy(),  # [N]
            "checksums": np.array([zlib.crc32(one) for one in self._observation]),  # [N]
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> np.ndarray:
        series, series_steps, taken = self._parsed(state)
        # All are to arrive with the last step, so those with fewer steps idle until their turn has come.
        num_steps = series_steps.max()
        idle = num_steps - series_steps
        actions = np.zeros((num_steps, self.num_envs), np.int64)
        for i, own in enumerate(np.split(taken, np.cumsum(series_steps)[:-1])):
            actions[idle[i] :, i] = own

        self._series[:] = series
        observation = self._start(np.ones(self.num_envs, bool), seeded=idle == 0)
        for step in range(num_steps):
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
        return observation

    def close(self) -> None:
        self._environments.close()
        vars(self._environments).pop("ale", None)  # the emulator threads end with this object

    def _start(self, mask: np.ndarray, seeded: np.ndarray) -> np.ndarray:
        """Starts a game where `mask` says, and with it the series where `seeded` says; gives all observations."""
        seeds = (self._seed + self._each + self._series * _SEED_STRIDE) % 2**30
        seed: Any = np.where(seeded, seeds, -1)[mask]
        if not self.spec.is_atari:  # gymnasium wants one for each, and another sign for none
            seed = [int(one) if new else None for one, new in zip(seeds, seeded, strict=True)]
        observation, info = self._environments.reset(seed=seed, options={"reset_mask": mask})
        self._lives = info.get("lives", self._lives)
        self._returns[mask] = self._lengths[mask] = 0
        self._series_steps[seeded] = 0
        observation = self._canonical(observation)
        self._observation[:] = observation
        return observation

    def _record(self, actions: np.ndarray) -> None:
        if self._series_steps.max() == self._actions.shape[1]:
            self._actions = np.concatenate([self._actions, np.zeros_like(self._actions)], axis=1)
        self._actions[self._each, self._series_steps] = actions
        self._series_steps += 1

    def _identity(self) -> dict[str, np.ndarray]:
        """What two objects must have in common to exchange states."""
        spec = self.spec
        return {
            "environment": np.array(f"{spec.id} {spec.protocol} of at most {spec.max_episode_steps} steps"),
            "num_envs": np.array(self.num_envs),
            "seed": np.array(self._seed),
        }

    def _parsed(self, state: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Series, their steps and actions of a state that this object can try to restore, else ValueError."""
        for name, ours in self._identity().items():
            if name not in state or not np.array_equal(state[name], ours):
                raise ValueError(f"the state has {name}={state.get(name)}, here it is {ours}")
        for name in ("series", "series_steps", "actions", "returns", "lengths", "lives", "checksums"):
            shape = (self.num_envs,) if name != "actions" else (int(np.sum(state["series_steps"])),)
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
        valid = actions.shape == (self.num_envs,) and np.issubdtype(actions.dtype, np.integer)
        # An action out of range would leave the emulator's threads waiting for ever.
        if not valid or actions.min() < 0 or actions.max() >= self.spec.num_actions:
            raise ValueError(
                f"actions must be {self.num_envs} integers in [0, {self.spec.num_actions}), got {actions!r}"
            )
        return actions.astype(np.int64, copy=False)


def _resolve_atari(game: str, protocol: str) -> EnvironmentSpec:
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    emulator = ale_py.ALEInterface()
    try:
        path = roms.get_rom_path(game)
        assert path is not None  # as the game is registered
        emulator.loadROM(path)
    except OSError as error:
        raise UserError(f"--env={game}: has no ROM that can be read, reinstall ale-py: {error}") from error
    return EnvironmentSpec(
        id=f"ALE/{game.title().replace('_', '')}-v5",
        is_atari=True,
        protocol=protocol,
        num_actions=len(emulator.getMinimalActionSet()),
        observation_shape=(84, 84),
        observation_dtype=np.dtype(np.uint8),
        frame_skip=_ATARI_FRAME_SKIP,
        stack=4,
        max_episode_steps=108_000 // _ATARI_FRAME_SKIP,  # half an hour of play
    )


def _resolve_gymnasium(id: str) -> EnvironmentSpec:
    try:
        environment = _make(id)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        missing = _one_line(error)
        if "box2d" in missing.lower():
            missing = 'pip install "async-dqn[box2d]"'
        raise UserError(f"--env={id}: needs a package that is missing: {missing}") from error
    except gymnasium.error.DeprecatedEnv as error:
        raise UserError(f"--env={id}: is too old: {_one_line(error)}") from error
    except gymnasium.error.Error as error:
        raise _unknown_environment(id) from error
    except Exception as error:  # an id may name any module
        raise UserError(f"--env={id}: cannot be made: {type(error).__name__}: {_one_line(error)}") from error
    actions, observations = environment.action_space, environment.observation_space
    assert environment.spec is not None  # as it was made by its id
    environment.close()

    if not isinstance(actions, gymnasium.spaces.Discrete) or actions.start != 0:
        given = _one_line(actions)
        raise UserError(f"--env={id}: has the actions {given}: only Discrete(n), from 0, is supported")
    if not isinstance(observations, gymnasium.spaces.Box):
        given = _one_line(observations)
        raise UserError(f"--env={id}: has the observations {given}: only Box is supported")
    module, colon, _ = id.rpartition(":")
    return EnvironmentSpec(
        id=f"{module}{colon}{environment.spec.id}",
        is_atari=False,
        protocol="none",
        num_actions=int(actions.n),
        observation_shape=(int(np.prod(observations.shape)),),
        observation_dtype=np.dtype(np.float32),
        frame_skip=1,
        stack=1,
        max_episode_steps=gymnasium.spec(environment.spec.id).max_episode_steps,
    )


def _make(id: str) -> gymnasium.Env:
    """Makes one gymnasium environment, without its own time limit and without a word on the terminal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gymnasium.make(id, max_episode_steps=-1, disable_env_checker=True)


def _atari_games() -> dict[str, str]:
    """ROM names by their letters alone: {"mspacman": "ms_pacman"}; only of games for one player."""
    return {
        spec.kwargs["game"].replace("_", ""): spec.kwargs["game"]
        for id, spec in gymnasium.registry.items()
        if id.startswith("ALE/")
    }


def _unknown_protocol(protocol: str) -> UserError:
    return UserError(f"--protocol={protocol} is unknown: use {' or '.join(_ATARI_PROTOCOLS)}")


def _unknown_environment(id: str) -> UserError:
    others = [name for name, spec in gymnasium.registry.items() if spec.entry_point != "ale_py.env:AtariEnv"]
    names = {name.lower(): name for name in [*_atari_games().values(), *others]}
    close = [names[name] for name in difflib.get_close_matches(id.lower().removeprefix("ale/"), names)]
    hint = f", did you mean {' or '.join(close)}?" if close else ";"
    allowed = "use an Atari game such as pong or a gymnasium id such as CartPole-v1"
    return UserError(f"--env={id} is unknown{hint} {allowed}")


def _one_line(value: object) -> str:
    return " ".join(str(value).split())
