"""Which environments there are: the Atari protocols, and any gymnasium id."""

import difflib
import importlib
import importlib.metadata
import math
import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import ale_py
import gymnasium
import numpy as np
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from async_dqn.base.errors import UserError, import_fault, one_line
from async_dqn.envs.checks import Checked
from async_dqn.envs.processes import EnvironmentProcesses
from async_dqn.envs.spaces import Adapted, Unsupported
from async_dqn.envs.spec import EnvironmentSpec
from async_dqn.envs.vector_env import VectorEnv
from async_dqn.envs.wrappers import wrap
from async_dqn.settings.environment import EnvironmentOptions

# How a game starts and what makes it random. `classic`: Mnih et al. 2015, and FIRE for the first frame where
# a game has it. `machado`: Machado et al. 2018, section 5, as in Dopamine.
_ATARI_PROTOCOLS: dict[str, dict[str, Any]] = {
    "classic": {"noop_max": 30, "use_fire_reset": True, "repeat_action_probability": 0.0},
    "machado": {"noop_max": 0, "use_fire_reset": False, "repeat_action_probability": 0.25},
}

_ATARI_FRAME_SKIP = 4
_PLAIN = EnvironmentOptions()
_ATARI_ENTRY = "ale_py.env:AtariEnv"  # of an emulator among gymnasium's environments

# An emulator is seeded by loading its ROM anew, which takes a tenth of a second, most of it for a table of blended
# colours that nothing here reads. So its games share a seed until this many steps were played from it.
ATARI_STEPS_PER_SEED = 5_000


def resolve(id: str, protocol: str, options: EnvironmentOptions = _PLAIN) -> EnvironmentSpec:
    """Looks up an environment without starting a run.

    Args:
      id: an Atari game (`pong`, `MsPacman`, `ALE/Pong-v5`) or a gymnasium id (`CartPole-v1`, `module:My-v0`).
      protocol: "classic" or "machado"; other environments than Atari ignore it.
      options: how it is made; Atari's protocols leave no choice.

    Raises:
      UserError: the environment is unknown, needs a package or a ROM that is missing, or has actions or observations
        that no agent here can use.
    """
    # The suffixes are those of the ids that gymnasium had before v5.
    match = re.fullmatch(r"(?:ALE/)?(\w+?)((?:-ram)?(?:NoFrameskip|Deterministic)?(?:-v\d+)?)", id)
    game = _atari_games().get(match[1].replace("_", "").lower()) if match else None
    if not match or not game or _is_of_gymnasium(id):
        return _resolve_gymnasium(id, options)
    if match[2] not in ("", "-v5"):
        raise UserError(f"--env={id}: is an old Atari id: use {game} and the protocol classic or machado")
    if options.texts():
        raise UserError(f"{options.texts()[0]}: is not for Atari games, which --protocol decides on")
    return _resolve_atari(game, protocol)


def make_vector_env(
    spec: EnvironmentSpec, num_envs: int, seed: int, num_threads: int = 0, process_timeout: float = 0.0
) -> VectorEnv:
    """Makes N environments; the same seed and actions give the same frames, whatever the threads do.

    Args:
      spec: from `resolve`.
      num_envs: N. Environment i begins with the seed `seed + i`, and goes on with others that depend on both.
      seed: any integer, used modulo 2^30 as the emulator's seeds are 31 bits.
      num_threads: emulator threads on Atari, 0 for one per environment or core, whichever is fewer.
      process_timeout: have each environment other than Atari's in a process of its own, which may take so many seconds
        for a step; 0: all are in this one.
    """
    environments: gymnasium.vector.VectorEnv | EnvironmentProcesses
    steps_per_seed = 0
    if spec.is_atari:
        # Emulators could end an episode at a lost life, but would start the game over, or at a limit, but
        # would not render its last frames. So they are only asked for the end of the game.
        environments = make_emulators(spec, num_envs, num_threads=num_threads)
        steps_per_seed = ATARI_STEPS_PER_SEED
    elif process_timeout:
        environments = EnvironmentProcesses(lambda: make_adapted(spec), num_envs, process_timeout)
    else:
        makers = [lambda: make_adapted(spec)] * num_envs
        environments = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)
    return VectorEnv(environments, spec, num_envs, seed, steps_per_seed)


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


def make_adapted(spec: EnvironmentSpec, **arguments: Any) -> Adapted:
    """One environment that is no Atari game, as agents see it; `arguments` go to gymnasium."""
    made = Checked(_make(spec.id, spec.options, **arguments), spec.id)
    return Adapted(made, action_mask=spec.options.action_mask)


def random_actions(
    spec: EnvironmentSpec, num_envs: int, rng: np.random.Generator, observation: np.ndarray | None = None
) -> np.ndarray:
    """Actions for N environments, uniformly random; of those that the masks in observations [N, ...] allow."""
    if spec.packing and spec.packing.mask and observation is not None:
        chance = rng.random((num_envs, spec.num_actions)) * observation[:, : spec.packing.mask]
        return chance.argmax(axis=1).astype(spec.action_dtype)
    if spec.is_continuous:
        return rng.uniform(-1, 1, (num_envs, *spec.action_shape)).astype(spec.action_dtype)
    return rng.integers(spec.num_actions, size=num_envs, dtype=spec.action_dtype)


def action_names(spec: EnvironmentSpec) -> list[str]:
    """What each action does, as far as it is known: on Atari, else their numbers."""
    if not spec.is_atari:
        return [str(action) for action in range(spec.num_actions)]
    emulator = _emulator(gymnasium.spec(spec.id).kwargs["game"])
    return [action.name.lower() for action in emulator.getMinimalActionSet()]


def atari_games() -> Iterator[tuple[str, EnvironmentSpec]]:
    """The Atari games that are installed, in order of their names, each as `resolve` takes it and gives it.

    To know a game's actions its ROM has to be loaded, which takes a tenth of a second.

    Raises:
      UserError: one has no ROM that can be read.
    """
    for game in sorted(_atari_games().values()):
        yield game, _resolve_atari(game, "classic")


def _emulator(game: str) -> ale_py.ALEInterface:
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    emulator = ale_py.ALEInterface()
    path = roms.get_rom_path(game)
    assert path is not None  # as the game is registered
    emulator.loadROM(path)
    return emulator


def _resolve_atari(game: str, protocol: str) -> EnvironmentSpec:
    try:
        emulator = _emulator(game)
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


def _resolve_gymnasium(id: str, options: EnvironmentOptions) -> EnvironmentSpec:
    environment = _make_or_explain(id, options)
    environment.close()
    try:
        adapted = Adapted(environment, action_mask=options.action_mask)
    except Unsupported as error:
        spaces = f"the actions {environment.action_space} and the observations {environment.observation_space}"
        raise UserError(f"--env={id}: has {one_line(spaces)}: {error}") from error
    actions, seen = adapted.actions.space, adapted.observations
    registered = environment.unwrapped.spec
    assert registered is not None  # as it was made by its id
    limit = gymnasium.spec(registered.id).max_episode_steps
    module, colon, _ = id.rpartition(":")
    return EnvironmentSpec(
        id=f"{module}{colon}{registered.id}",
        is_atari=False,
        protocol="none",
        num_actions=int(actions.n) if isinstance(actions, gymnasium.spaces.Discrete) else 0,
        observation_shape=seen.space.shape,
        observation_dtype=np.dtype(seen.space.dtype),
        frame_skip=options.frame_skip or 1,
        stack=options.frame_stack or 1,
        max_episode_steps=limit and math.ceil(limit / (options.frame_skip or 1)),
        action_shape=actions.shape or (),
        packing=seen.packing,
        bounds=seen.bounds,
        left_out=seen.left_out,
        options=options,
    )


def _make_or_explain(id: str, options: EnvironmentOptions) -> gymnasium.Env:
    """Makes one environment. Raises UserError with its own reason where it cannot be made."""
    module, _, name = id.rpartition(":")
    is_looked_up = False
    try:
        if module:
            _import(module, name)  # here, so that an error in it is not taken for an id that is unknown
        is_looked_up = True
        return _make(id, options)
    except UserError:
        raise
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        missing = import_fault(error, module)
        if "box2d" in missing.lower():
            missing = f'{shlex.quote(sys.executable)} -m pip install "gymnasium[box2d]"'
        raise UserError(f"--env={id}: needs a package that is missing: {missing}") from error
    except gymnasium.error.DeprecatedEnv as error:
        raise UserError(f"--env={id}: is too old: {one_line(error)}") from error
    except (Exception, SystemExit) as error:  # an id may name any module
        is_known = any(name in (known, known.rpartition("-v")[0]) for known in gymnasium.registry)
        if isinstance(error, gymnasium.error.Error) and is_looked_up and not is_known:
            raise _unknown_environment(id) from error
        raise UserError(f"--env={id}: cannot be made: {type(error).__name__}: {one_line(error)}") from error


def _make(id: str, options: EnvironmentOptions, **arguments: Any) -> gymnasium.Env:
    """Makes one gymnasium environment, without its own time limit and without a word on the terminal."""
    module, _, name = id.rpartition(":")
    if module:
        _import(module, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = gymnasium.make(
            id, max_episode_steps=-1, disable_env_checker=True, **{**options.arguments(), **arguments}
        )
    return wrap(made, options)


def _import(module: str, name: str) -> None:
    """Imports a module that registers an environment, by itself or by what it has as an entry point for gymnasium.

    Older packages, such as MinAtar, rely on `gymnasium.envs`, which gymnasium itself no longer looks at.
    """
    importlib.import_module(module)
    if name not in gymnasium.registry:
        for entry in importlib.metadata.entry_points(group="gymnasium.envs"):
            if entry.module.partition(".")[0] == module.partition(".")[0]:
                entry.load()()


def _atari_games() -> dict[str, str]:
    """ROM names by their letters alone: {"mspacman": "ms_pacman"}; only of games for one player."""
    return {
        spec.kwargs["game"].replace("_", ""): spec.kwargs["game"]
        for id, spec in gymnasium.registry.items()
        if id.startswith("ALE/")
    }


def _is_of_gymnasium(id: str) -> bool:
    """Whether this very id is registered, and not as an Atari game: Blackjack-v1."""
    return id in gymnasium.registry and gymnasium.registry[id].entry_point != _ATARI_ENTRY


def _unknown_environment(id: str) -> UserError:
    others = [name for name, spec in gymnasium.registry.items() if spec.entry_point != _ATARI_ENTRY]
    names = {name.lower(): name for name in [*_atari_games().values(), *others]}
    close = [names[name] for name in difflib.get_close_matches(id.lower().removeprefix("ale/"), names)]
    close += [f"{module}:{id}" for module in _modules_like(id)]
    hint = f", did you mean {' or '.join(close)}?" if close else ";"
    allowed = (
        "use an Atari game such as pong, a gymnasium id such as CartPole-v1, or MODULE:ID where it is importing MODULE "
        "that registers ID"
    )
    return UserError(f"--env={id} is unknown{hint} {allowed}")


def _modules_like(id: str) -> list[str]:
    """Installed modules whose name begins as the id does: minigrid for MiniGrid-Empty-5x5-v0."""
    match = re.match("[a-z]{4,}", id.lower())
    if not match:
        return []
    names = importlib.metadata.packages_distributions()
    return sorted(name for name in names if name.lower().startswith(match[0]) and name.isidentifier())[:2]
