"""A trained agent that plays: what `async_dqn.load` gives, and what `evaluate` plays with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import tensorflow as tf
from gymnasium.vector.utils import batch_space, iterate

from async_dqn.agents.base import Agent
from async_dqn.data.experience import Outputs
from async_dqn.data.recurrent_state import RecurrentState
from async_dqn.envs import registry
from async_dqn.envs.frame_stack import FrameStack
from async_dqn.run import build
from async_dqn.run.directory import RunDirectory
from async_dqn.run.trained import Trained, load_trained


class Player:
    """Plays N environments, a row each, with the networks of one checkpoint.

    It takes what one vector step of the environments gives, single frames on Atari, and keeps the stacks and what the
    agent remembers itself.

    Attributes:
      agent: the algorithm, with settings and environment: `agent.config`, `agent.spec`.
      env_steps: agent steps that it was trained for.
      checkpoint: best or newest, where it was not asked for by its steps.

    Args:
      noise: with it, an agent that has noise in its networks explores as in training; None: it does not.
    """

    def __init__(self, agent: Agent, trained: Trained, noise: np.random.Generator | None = None):
        self.agent, self.env_steps, self.checkpoint = agent, trained.env_steps, trained.name
        variables = {name: tf.Variable(one, trainable=False) for name, one in trained.online.items()}
        self._evaluate = build.make_evaluate(agent, variables, noise if agent.has_noise else None)
        self._adapted = None if agent.spec.is_atari else registry.make_adapted(agent.spec)
        if self._adapted:
            self._adapted.close()  # only its spaces are needed
        self._stack: FrameStack | None = None
        self._recurrent_state = RecurrentState(0, agent.recurrent_size)
        self._first = np.empty(0, bool)  # [N], rows whose next observation begins an episode
        self._newest = np.empty(0)  # [N, ...], that `act` was given last
        self._outputs: Outputs = {}  # on them

    def outputs(self, observations: np.ndarray) -> Outputs:
        """Steps on to the observations [N, ...]; what the networks say there: {head: [N, ...]}.

        Raises:
          ValueError: they have another shape or number of rows than those before.
        """
        observations = self._checked(observations)
        assert self._stack is not None
        stacked = self._stack.push(observations, self._first)
        self._first = np.zeros(len(observations), bool)
        self._newest = observations.copy()
        self._outputs = self._recurrent_state.evaluate(self._evaluate, stacked)
        self._recurrent_state.keep(self._outputs)
        return self._outputs

    def act(self, observations: Any, action_mask: np.ndarray | None = None) -> np.ndarray:
        """The best actions [N, ...] by what is seen now and was seen before, as the environment takes them.

        Args:
          observations: the newest of each row, as a vector of environments shows them: [N, ...], or a dict or tuple of
            such; the number of rows is that of the first call.
          action_mask: [N, A] of those that can be taken, for a run with --action_mask; None: all can.

        Raises:
          ValueError: they have another shape or number of rows, or there is a mask that the agent does not know.
        """
        actions = self.agent.greedy(self.outputs(self._seen(observations, action_mask)))
        return actions if self._adapted is None else np.stack([self._adapted.actions.convert(one) for one in actions])

    def values(self, observations: Any, action_mask: np.ndarray | None = None) -> np.ndarray:
        """The values of the observations that `act` was given last, or would be given next: it does not step on.

        Returns:
          [N, A] for agents that value actions, [N] for those that value states. Float32, of rewards as they were
          learned from.

        Raises:
          ValueError: they have another shape or number of rows, or there is a mask that the agent does not know.
        """
        observations = self._checked(self._seen(observations, action_mask))
        if np.array_equal(observations, self._newest):
            return self.agent.values(self._outputs)
        assert self._stack is not None
        stacked = self._stack.peek(observations, self._first)
        return self.agent.values(self._recurrent_state.evaluate(self._evaluate, stacked))

    def make_env(self, **arguments: Any) -> gymnasium.Env:
        """The environment that it was trained in, as --env_args, --wrapper, --frame_skip and the like made it.

        Args:
          **arguments: for `gymnasium.make`, such as render_mode="human".

        Raises:
          ValueError: it was trained on an Atari game, which `async-dqn evaluate` plays.
        """
        spec = self.agent.spec
        if spec.is_atari:
            raise ValueError(f"{spec.id} is an Atari game, which async-dqn evaluate plays")
        env = registry.make_adapted(spec, **arguments).env  # in which observations and actions are its own
        return gymnasium.wrappers.TimeLimit(env, spec.max_episode_steps) if spec.max_episode_steps else env

    def reset(self, rows: Sequence[int] | np.ndarray | None = None) -> None:
        """Forgets what was seen before in some rows, or in all: their next observation begins an episode.

        Args:
          rows: their numbers, or a mask [N] bool; None: all.
        """
        if rows is None:
            self._stack = None
        elif self._stack is not None:
            chosen = np.asarray(rows)
            chosen = chosen if chosen.dtype == bool else chosen.astype(int)  # an empty list has floats
            self._first[chosen] = True
            self._recurrent_state.forget(chosen)
            self._newest = np.empty(0)

    def _seen(self, observations: Any, action_mask: np.ndarray | None) -> np.ndarray:
        """What the environments show, as agents see it. Raises ValueError for a mask that the agent cannot obey."""
        packing = self.agent.spec.packing
        if action_mask is not None and not (packing and packing.mask):
            raise ValueError("action_mask: the agent was trained without --action_mask")
        if self._adapted is None or (convert := self._adapted.observations.convert) is None:
            return observations
        spec, space = self.agent.spec, self._adapted.env.observation_space
        rows = list(iterate(batch_space(space), observations))
        masks = np.ones((len(rows), spec.packing.mask if spec.packing else 0), bool)
        if action_mask is not None:
            masks[:] = action_mask
        return np.stack([convert(row, mask) for row, mask in zip(rows, masks, strict=True)])

    def _checked(self, observations: np.ndarray) -> np.ndarray:
        """[N, ...] as the network takes them; a vector may come in any shape. Makes the stacks of the first ones."""
        spec = self.agent.spec
        given = np.asarray(observations)
        size = int(np.prod(spec.observation_shape))
        fits = given.ndim > 0 and given.size == len(given) * size
        if not fits or (spec.is_atari and given.shape[1:] != spec.observation_shape):
            raise ValueError(f"observations have the shape {given.shape}, not {('N', *spec.observation_shape)}")
        given = given.reshape(-1, *spec.observation_shape).astype(spec.observation_dtype, copy=False)
        if self._stack is None:
            self._stack = FrameStack(len(given), spec.stack, spec.observation_shape, spec.observation_dtype)
            self._recurrent_state = RecurrentState(len(given), self.agent.recurrent_size)
            self._first, self._newest = np.ones(len(given), bool), np.empty(0)
        if len(given) != len(self._first):
            raise ValueError(f"{len(given)} observations for {len(self._first)} rows; call reset() first")
        return given


def load(logdir: str | Path, checkpoint: str | int | None = None) -> Player:
    """See `async_dqn.load`."""
    run = RunDirectory(logdir)
    agent = build.make_agent(run.read_config())
    return Player(agent, load_trained(run, agent, lambda line: None, checkpoint))
