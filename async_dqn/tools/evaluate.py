"""Plays games with a trained agent, and shows them."""

import contextlib
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from async_dqn.agents.base import Agent
from async_dqn.base.errors import UserError
from async_dqn.base.files import write_json
from async_dqn.data.experience import Outputs
from async_dqn.envs import registry
from async_dqn.envs.spec import EnvironmentSpec
from async_dqn.run.bad_values import BadValues
from async_dqn.run.build import make_agent
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import Progress, count, format_seconds
from async_dqn.run.trained import load_trained
from async_dqn.settings.config import Config
from async_dqn.tools.player import Player
from async_dqn.tools.show.overlay import OVERLAYS, Overlay
from async_dqn.tools.show.screen import make_screen
from async_dqn.tools.show.viewers import Video, Window

_MAX_ENVS = 10
_MAX_STEPS = 27_000  # of a game whose environment has no limit: as on Atari
_STEPS_BETWEEN = 100  # two lines of progress while no game ends


class Watch(NamedTuple):
    """How the games are shown.

    Attributes:
      video: the .gif or .mp4 file for the first game; None: none.
      video_seconds: how long it may get.
      human: open a window, and play the games in it one after another at the speed of play.
      overlay: what to draw beside the picture: one of `OVERLAYS`, or none.
    """

    video: str | None = None
    video_seconds: float = np.inf
    human: bool = False
    overlay: str = "none"


class Play(NamedTuple):
    """How the agent plays.

    Attributes:
      greedy: it takes the best action, the mode of a policy; false: it acts as in training.
      epsilon: the probability of a uniformly random action in place of either.
    """

    greedy: bool = True
    epsilon: float = 0.0

    @property
    def name(self) -> str:
        """One word on it."""
        return "greedy" if self.greedy else "sampled"


def run_evaluate(
    config: Config,
    run: RunDirectory,
    *,
    games: int,
    seed: int,
    watch: Watch,
    play: Play = Play(),  # noqa: B008
    keeps: bool = True,
    checkpoint: str | None = None,
    max_steps: int | None = None,
) -> int:
    """Plays `games` games of a checkpoint of the run and says how they went. Gives the exit code.

    Args:
      checkpoint: as in `load_trained`.
      max_steps: agent steps after which a game is cut off; None: the environment's own limit, or else 27,000.
      keeps: write evaluation.json into the run directory.

    Raises:
      UserError: there is no such checkpoint, or the games cannot be shown as asked for.
    """
    progress = Progress()
    agent = make_agent(config)
    trained = load_trained(run, agent, progress.say, checkpoint)
    player = Player(agent, trained, None if play.greedy else np.random.default_rng([seed, 1]))
    limit = max_steps or agent.spec.max_episode_steps or _MAX_STEPS
    spec = replace(agent.spec, max_episode_steps=limit)
    with contextlib.ExitStack() as cleanup:
        show = _Show(agent, spec, seed, watch, cleanup)
        num_envs = 1 if watch.human else min(games, _MAX_ENVS)
        begun = time.monotonic()
        lengths, returns = _play(player, spec, play, games, num_envs, seed, progress, show)
        seconds = time.monotonic() - begun
    if not returns:
        progress.say("no game was played to its end")
        return show.report(progress)
    result = {
        "env": agent.spec.id,
        "protocol": agent.spec.protocol,
        "checkpoint": trained.name,
        "checkpoint_env_steps": trained.env_steps,
        "games": len(returns),
        "seed": seed,
        "actions": play.name,
        "epsilon": play.epsilon,
        "max_steps": max_steps,
        "seconds": round(seconds, 1),
        "mean": float(np.mean(returns)),
        "std": float(np.std(returns)),
        "min": float(np.min(returns)),
        "max": float(np.max(returns)),
        "returns": returns,
        "lengths": lengths,
    }
    if keeps and len(returns) == games:
        with contextlib.suppress(OSError):  # a run directory may be read-only
            write_json(run.path / "evaluation.json", result)
    cut = sum(length >= limit for length in lengths)
    if cut and limit != agent.spec.max_episode_steps:
        progress.say(f"{count(cut, 'game')} of {len(lengths)} reached the limit of {limit:,} steps")
    which = f"the {trained.name} checkpoint" if trained.name else "as asked for"
    kind = f"epsilon-{play.epsilon:g} game" if play.epsilon else f"{play.name} game"
    protocol = f" ({agent.spec.protocol})" if agent.spec.is_atari else ""
    progress.say(
        f"{agent.spec.id}{protocol}, {count(len(returns), kind)} at {trained.env_steps:,} "
        f"agent steps ({which}): mean {result['mean']:.2f}, standard deviation {result['std']:.2f}, "
        f"min {result['min']:.6g}, max {result['max']:.6g}; played in {format_seconds(seconds)}"
    )
    return show.report(progress)


class _Show:
    """Shows the games of the first environment: the first of them in a video, all in a window, or none at all."""

    def __init__(self, agent: Agent, spec: EnvironmentSpec, seed: int, watch: Watch, cleanup: contextlib.ExitStack):
        """Makes what shows the games; `cleanup` closes it."""
        self._agent = agent
        self._video: Video | None = None
        self._window: Window | None = None
        self._differs = False  # what is shown from what is played
        if watch.video is None and not watch.human:
            return
        self._overlay = _make_overlay(agent, watch.overlay) if watch.overlay != "none" else None
        self._screen = make_screen(spec, seed, has_window=watch.human)
        cleanup.callback(self._screen.close)
        if watch.video is not None:
            self._video = Video(watch.video, self._screen.frames_per_second, watch.video_seconds)
            cleanup.callback(self._video.close)
        if watch.human:
            self._window = Window(f"async-dqn: {agent.spec.id}", self._screen.frames_per_second)
            cleanup.callback(self._window.close)
        self._picture = self._screen.reset()

    @property
    def is_closed(self) -> bool:
        """Whether whoever watched has closed the window."""
        return self._window is not None and self._window.is_done

    def step(self, outputs: Outputs, action: np.ndarray, observation: np.ndarray) -> None:
        """Shows where the game stands and what the networks say of it, and goes on with the action.

        Args:
          observation: that the action leads to where it is played.
        """
        viewers = [viewer for viewer in (self._video, self._window) if viewer and not viewer.is_done]
        if not viewers:
            return
        before, (*ended, self._picture) = self._picture, self._screen.step(action)
        for picture in (before, *ended):
            if self._overlay:
                value = float(np.max(self._agent.values(outputs)[0]))
                picture = self._overlay.draw(picture, outputs[self._overlay.kind.head][0], int(action), value)
            for viewer in viewers:
                if not viewer.is_done:
                    viewer.show(picture)
        twin = self._screen.observation
        self._differs |= twin is not None and not np.array_equal(twin, observation)

    def end_game(self) -> None:
        """A game has ended."""
        if self._video:
            self._video.close()

    def report(self, progress: Progress) -> int:
        """Says what became of the video. Gives the exit code."""
        if self._differs:
            progress.say("warning: other games were shown than played: the environment depends on more than its seed")
        if not (video := self._video):
            return 0
        pictures = count(video.num_pictures, "picture")
        failed = f"the video {video.path} ends after {pictures}: {video.fault}"
        progress.say(failed if video.fault else f"video of the first game ({pictures}): {video.path}")
        return int(bool(video.fault))


def _make_overlay(agent: Agent, name: str) -> Overlay:
    kind = OVERLAYS[name]
    if kind.head not in agent.network_outputs:
        fitting = [f"--overlay={other}" for other, one in OVERLAYS.items() if one.head in agent.network_outputs]
        advice = f"use {fitting[0]}" if fitting else "leave it out"
        raise UserError(f"--overlay={name}: --agent={agent.config.agent} has no {kind.what}; {advice}")
    return Overlay(kind, registry.action_names(agent.spec))


def _play(
    player: Player,
    spec: EnvironmentSpec,
    play: Play,
    games: int,
    num_envs: int,
    seed: int,
    progress: Progress,
    show: _Show,
) -> tuple[list[int], list[float]]:
    """Lengths and returns of `games` games, each environment playing its share; fewer if nobody watches."""
    agent, rng = player.agent, np.random.default_rng(seed)
    shares = np.array([len(part) for part in np.array_split(np.arange(games), num_envs)])
    timeout = agent.config.env_timeout if agent.config.env_processes else 0.0
    env = registry.make_vector_env(spec, num_envs, seed, process_timeout=timeout)
    lengths: list[int] = []
    returns: list[float] = []
    longest = 0  # steps since a game has ended last
    played = np.zeros(num_envs, int)
    bad_values = BadValues(agent.spec.id, progress.say)
    with contextlib.closing(env):
        observation = env.reset()
        while len(returns) < games and not show.is_closed:
            outputs = player.outputs(observation)
            actions = agent.greedy(outputs) if play.greedy else agent.act(outputs, rng, player.env_steps)
            if play.epsilon:
                is_random = rng.random(num_envs) < play.epsilon
                actions[is_random] = registry.random_actions(agent.spec, num_envs, rng, observation)[is_random]
            result = env.step(actions)
            show.step(outputs, actions[0], result.observation[0])
            player.reset(result.first())
            bad_values.take(result.bad_values)
            observation = result.observation
            longest = 0 if result.episodes else longest + 1
            if longest % _STEPS_BETWEEN == _STEPS_BETWEEN - 1:
                progress.show(f"{len(returns)}/{games} games; the ones now played have gone on for {longest:,} steps")
            for episode in result.episodes:
                if played[episode.environment] < shares[episode.environment]:
                    lengths.append(episode.length)
                    returns.append(episode.episode_return)
                played[episode.environment] += 1
                if episode.environment == 0:
                    show.end_game()
                progress.show(f"{len(returns)}/{games} games, mean return {np.mean(returns or [0]):.2f}")
    return lengths, returns
