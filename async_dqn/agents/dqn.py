"""DQN (Mnih et al. 2015), with double Q-learning and n-step returns as options.

The same agent is the single-process baseline and a worker of a cluster: which parameters it computes on, and where its
gradients go, is its `ParameterClient`'s affair.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from async_dqn.base.schedules import Schedule
from async_dqn.base.types import StepResult, Transition
from async_dqn.data.prefetch import Prefetch
from async_dqn.data.replay import Replay
from async_dqn.envs.frame_stack import FrameStack
from async_dqn.nn import losses
from async_dqn.nn.aligned import as_tensor
from async_dqn.nn.layout import Layout
from async_dqn.nn.networks import Network
from async_dqn.nn.policies import epsilon_greedy
from async_dqn.store.client import ParameterClient

GradientFn = Callable[[tf.Tensor, tf.Tensor, Transition], tuple[tf.Tensor, tf.Tensor]]
LearnFn = Callable[[Transition, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
ActFn = Callable[[tf.Tensor], tf.Tensor]


def make_gradient(network: Network, layout: Layout, *, double: bool, max_norm: float) -> GradientFn:
    """The function (online [P], target [P], minibatch) -> (mean Huber loss scalar, gradient [P])."""

    def gradient(online: tf.Tensor, target: tf.Tensor, batch: Transition) -> tuple[tf.Tensor, tf.Tensor]:
        q_t = network.apply(layout.unflatten(target), batch.s_t)["q_values"]  # [B, A]
        selector = network.apply(layout.unflatten(online), batch.s_t)["q_values"] if double else q_t  # [B, A]
        with tf.GradientTape() as tape:
            tape.watch(online)
            q_tm1 = network.apply(layout.unflatten(online), batch.s_tm1)["q_values"]  # [B, A]
            errors = losses.double_q_learning(q_tm1, batch.a_tm1, batch.r_t, batch.discount_t, q_t, selector)  # [B]
            loss = tf.reduce_mean(losses.huber(errors))
        return loss, losses.clip_by_global_norm(tape.gradient(loss, online), max_norm)

    return gradient


def make_learner(gradient: GradientFn, client: ParameterClient, batch: Transition) -> LearnFn:
    """The function (minibatch, learning rate) -> (loss scalar, whether all was finite), for minibatches like `batch`.

    It hands the gradient to the client, unless something in it is not finite.
    """
    spec = [tf.TensorSpec(array.shape, array.dtype) for array in batch]

    @tf.function(autograph=False, input_signature=[*spec, tf.TensorSpec([])])
    def learn_from(*inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        *batch, learning_rate = inputs
        loss, flat_gradient = gradient(client.online.read_value(), client.target.read_value(), Transition(*batch))
        is_finite = tf.math.is_finite(loss) & tf.reduce_all(tf.math.is_finite(flat_gradient))
        tf.cond(is_finite, lambda: client.consume(flat_gradient, learning_rate), lambda: None)
        return loss, is_finite

    traced = learn_from.get_concrete_function()  # calls cost less Python, and cannot trace again
    return lambda batch, learning_rate: traced(*batch, learning_rate)


def make_actor(network: Network, layout: Layout, client: ParameterClient, batch: Transition) -> ActFn:
    """The function stacked observations [N, S, ...] -> action values [N, A] of the online network."""
    spec = tf.TensorSpec([None, *batch.s_t.shape[1:]], batch.s_t.dtype)

    @tf.function(autograph=False, input_signature=[spec])
    def q_values(stacked: tf.Tensor) -> tf.Tensor:
        return network.apply(layout.unflatten(client.online.read_value()), stacked)["q_values"]

    return q_values.get_concrete_function()


class _Minibatch(NamedTuple):
    """A buffer as replay fills it, and as TensorFlow reads it: the same memory."""

    arrays: Transition
    tensors: Transition


def _minibatch(arrays: Transition) -> _Minibatch:
    return _Minibatch(arrays, Transition(*map(as_tensor, arrays)))


class DQN:
    """One actor-learner: acts epsilon-greedily in N environments, keeps its own replay, computes gradients.

    Args:
      network, layout: the Q-network, and where its parameters lie in the flat vector.
      client: this worker's copy of the parameters and its way to the global ones.
      replay, frame_stack: this worker's own.
      epsilon: exploration over global agent steps.
      gradient: from `make_gradient`.
      batch_size: transitions of a minibatch.
      train_period: agent steps for each minibatch.
      warmup_steps: transitions of its own in replay before the first minibatch.
      clip_rewards: learn from rewards clipped to [-1, 1].
      prefetch: draw minibatches in a thread beside the computation.
      rng: for exploration and sampling.
    """

    def __init__(
        self,
        *,
        network: Network,
        layout: Layout,
        client: ParameterClient,
        replay: Replay,
        frame_stack: FrameStack,
        epsilon: Schedule,
        gradient: GradientFn,
        batch_size: int,
        train_period: int,
        warmup_steps: int,
        clip_rewards: bool,
        prefetch: bool,
        rng: np.random.Generator,
    ):
        self._client = client
        self._replay = replay
        self._frame_stack = frame_stack
        self._epsilon = epsilon
        self._train_period = train_period
        self._warmup_steps = warmup_steps
        self._clip_rewards = clip_rewards
        self._rng = rng
        buffers = (_minibatch(replay.make_batch(batch_size)), _minibatch(replay.make_batch(batch_size)))
        self._minibatches = Prefetch(self._draw, buffers, in_thread=prefetch)
        self._observation = np.empty(0)  # [N, ...]
        self._stacked = np.empty(0)  # [N, S, ...]
        self._owed_steps = 0  # agent steps not yet paid for with minibatches
        self._has_learned = False
        self._loss_sum, self._num_losses = 0.0, 0  # not a list, as nobody but the chief ever asks
        self._learn_from = make_learner(gradient, client, buffers[0].arrays)
        self._q_values = make_actor(network, layout, client, buffers[0].arrays)

    def reset(self, observation: np.ndarray) -> None:
        """Begins with the first observations [N, ...] of all environments, whatever episodes were going on."""
        self._replay.truncate()
        self._observation = observation
        self._stacked = self._frame_stack.reset(observation)

    def act(self) -> np.ndarray:
        """Actions [N] for where the environments stand."""
        q_values = self._q_values(self._stacked).numpy()  # [N, A]
        return epsilon_greedy(q_values, self.epsilon, self._rng)

    def observe(self, actions: np.ndarray, result: StepResult, num_steps: int) -> None:
        """Takes in what one step of all environments gave, `num_steps` of which count."""
        rewards = np.clip(result.reward, -1, 1) if self._clip_rewards else result.reward
        self._replay.add(
            self._observation, actions, rewards, result.terminated, result.truncated, result.next_observation
        )
        self._observation = result.observation
        self._stacked = self._frame_stack.push(result.observation, result.terminated | result.truncated)
        if self.is_warm:
            self._owed_steps += num_steps

    def learn(self) -> None:
        """Computes the minibatches that the agent steps observed until now call for; none during warm-up."""
        enter = self._client.clock.enter
        if not self._has_learned and self._owed_steps:
            self._has_learned = True
            self._client.start()  # others may have trained while this one filled its replay
        enter("replay")
        for minibatch in self._minibatches.take(self._owed_steps // self._train_period):
            self._owed_steps -= self._train_period
            enter("gradient")
            rate = tf.constant(self._client.current_learning_rate(), tf.float32)
            loss, is_finite = self._learn_from(minibatch.tensors, rate)
            is_finite = bool(is_finite)  # on a GPU, only now is it computed
            enter("copying")
            if is_finite:
                self._loss_sum += float(loss)
                self._num_losses += 1
                self._client.after_minibatch()
            else:
                self._client.reject_minibatch()
            enter("replay")

    def _draw(self, minibatch: _Minibatch) -> _Minibatch:
        self._replay.sample(len(minibatch.arrays.a_tm1), self._rng, minibatch.arrays)
        return minibatch

    def close(self) -> None:
        """Ends its thread."""
        self._minibatches.close()

    @property
    def is_warm(self) -> bool:
        """Whether replay holds enough to learn from."""
        return len(self._replay) >= self._warmup_steps

    @property
    def epsilon(self) -> float:
        """The exploration at the global step."""
        return self._epsilon(self._client.env_steps)

    def take_loss(self) -> float:
        """Mean loss of the minibatches since the last call; NaN where there were none."""
        loss = self._loss_sum / self._num_losses if self._num_losses else float("nan")
        self._loss_sum, self._num_losses = 0.0, 0
        return loss

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """All that this worker needs to go on, its replay aside: arrays, and plain values for JSON."""
        arrays = {f"slot/{name}": value for name, value in self._client.slots().items()}
        arrays |= {"observation": self._observation, "stacked": self._stacked}
        return arrays, {
            "rng": self._rng.bit_generator.state,
            "owed_steps": self._owed_steps,
            "has_learned": self._has_learned,
        }

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any], *, in_episode: bool) -> None:
        """Puts `state()` back.

        Args:
          in_episode: environments and replay stand exactly where they stood then, so that no `reset` follows.

        Raises:
          ValueError: it is the state of another agent.
        """
        slots = {name.removeprefix("slot/"): array for name, array in arrays.items() if name.startswith("slot/")}
        expected = {name: value.shape for name, value in self._client.slots().items()}
        if {name: value.shape for name, value in slots.items()} != expected:
            raise ValueError("it holds the slots of another optimizer or network")
        self._client.restore_slots(slots)
        self._rng.bit_generator.state = values["rng"]
        if in_episode:  # else its replay may be empty, and there is nothing to learn from
            self._owed_steps = values["owed_steps"]
            self._has_learned = values["has_learned"]
            self._observation = arrays["observation"]
            self._stacked = self._frame_stack.restore(arrays["stacked"])
