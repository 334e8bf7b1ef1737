"""The learner: turns due minibatches into gradients and hands them to the client, for every agent alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from async_dqn.agents.base import Agent
from async_dqn.base.errors import UserError
from async_dqn.data.experience import Source
from async_dqn.nn.aligned import as_tensor
from async_dqn.nn.losses import clip_together
from async_dqn.store.client import OPTIMIZER, ParameterClient

_LARGE = 1e18  # the square of more comes near the end of float32

_SLOT = "slot/"


class Learner:
    """Learns from experience as it falls due.

    Args:
      agent: says what the loss is.
      client: this worker's copy of the parameters and its way to the global ones.
      experience: of this worker.
      rng: for what is drawn from experience, and the seeds of the losses.
    """

    def __init__(self, agent: Agent, client: ParameterClient, experience: Source, *, rng: np.random.Generator):
        self._agent, self._client, self._experience = agent, client, experience
        self._rng = rng
        self.has_learned = False
        self._largest_reward = 0.0  # that came in, whatever its sign
        self._tensors = type(experience.batch)(*map(as_tensor, experience.batch))
        self._names: list[str] = []
        self._step = self._make_step()
        self._sums, self._counts = np.zeros((2, len(self._names)))

    def _make_step(self) -> tf.types.experimental.ConcreteFunction:
        """The function (*minibatch, rates [M], seed [2]) -> (loss and statistics, `per_item`, whether all was finite).

        It hands the gradients to the client, unless something in them is not finite.
        """
        client, modules, trained = self._client, self._agent.modules, self._agent.trained
        specs = [tf.TensorSpec(array.shape, array.dtype) for array in self._experience.batch]
        signature = [*specs, tf.TensorSpec([len(modules)]), tf.TensorSpec([2], tf.int32)]

        @tf.function(autograph=False, input_signature=signature)
        def step(*inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor]:
            *arrays, rates, seed = inputs
            batch = type(self._experience.batch)(*arrays)
            online = {module.name: client.online[module.name].read_value() for module in modules}
            watched = [online[module.name] for module in trained]
            targets = {
                module.name: module.layout.unflatten(client.target[module.name].read_value())
                for module in modules
                if module.has_target
            }
            with tf.GradientTape() as tape:
                tape.watch(watched)
                params = {module.name: module.layout.unflatten(online[module.name]) for module in modules}
                loss = self._agent.loss(params, targets, batch, seed)
            gradients = tape.gradient(loss.value, watched, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            gradients, norm = self._clipped(gradients)
            is_finite = tf.math.is_finite(loss.value)
            if self._agent.config.max_gradient_norm:
                is_finite &= tf.math.is_finite(norm)  # a norm that overflows would scale all gradients down to zero
            for gradient in gradients:
                is_finite &= tf.reduce_all(tf.math.is_finite(gradient))
            tf.cond(is_finite, lambda: client.consume(gradients, rates), lambda: None)
            statistics = {"loss": loss.value, "gradient_norm": norm, **loss.statistics}
            self._names = list(statistics)
            return tf.stack([*statistics.values()]), loss.per_item, is_finite

        made = step.get_concrete_function()  # calls cost less Python, and cannot trace again
        given = {"its loss gives the statistics": self._names, "its schedules give": self._agent.schedules(0)}
        for what, names in given.items():
            unknown = ", ".join(sorted({*names} - {"loss", "gradient_norm", *self._agent.metrics}))
            if unknown:
                agent = self._agent.config.agent
                raise UserError(f"--agent={agent}: {what} {unknown}, which its metrics do not name")
        return made

    def _clipped(self, gradients: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor]:
        """All gradients, where those of trained modules are scaled down to `--max_gradient_norm`; and their norm.

        Where several make one update, they are left alone: the store scales their mean.
        """
        named = list(zip(gradients, self._agent.trained, strict=True))
        trained = [one for one, module in named if module.is_trained]
        clipped, norm = clip_together(trained, self._agent.config.max_gradient_norm)
        if self._agent.config.max_mean_norm:
            return list(gradients), norm
        remaining = iter(clipped)
        return [next(remaining) if module.is_trained else one for one, module in named], norm

    def hear(self, rewards: np.ndarray) -> None:
        """Takes note of rewards that came in, of any shape: where a loss is not finite, they may be the cause."""
        self._largest_reward = float(np.maximum(self._largest_reward, np.abs(rewards).max()))

    def learn(self) -> None:
        """Computes the minibatches that are due; none while the experience warms up.

        Raises:
          RunFailed: too many of them in a row were not finite.
        """
        due = self._experience.due()
        if due and not self.has_learned:
            self.has_learned = True
            self._client.start()  # others may have trained while this one gathered its first experience
        for _ in range(due):
            self._learn_once()

    def settle(self) -> None:
        """Returns once no minibatch is under way."""

    def _learn_once(self) -> None:
        enter = self._client.clock.enter
        enter("experience")
        done = self._compute(self._client.env_steps, self._client.rates(), enter)
        enter("copying")
        self._count_minibatch(*done)
        enter("experience")

    def _compute(self, step: int, rates: np.ndarray, enter: Callable[[str], object]) -> tuple[np.ndarray, str]:
        """Draws a minibatch and hands its gradients to the client.

        Returns:
          Loss and statistics, and what made something of it not finite: "" where all was.
        """
        self._draw(step)
        seed = tf.constant(self._rng.integers(2**31, size=2, dtype=np.int32))
        enter("gradient")
        self._client.before_minibatch()
        statistics, per_item, is_finite = self._step(*self._tensors, tf.constant(rates), seed)
        is_finite = bool(is_finite)  # on a GPU, only now is it computed
        if is_finite and per_item is not None:
            self._experience.feedback(per_item.numpy())
        return statistics.numpy(), "" if is_finite else _cause(self._experience.batch, self._largest_reward)

    def _draw(self, step: int) -> None:
        self._experience.draw(self._rng, step)

    def _count_minibatch(self, statistics: np.ndarray, fault: str) -> None:
        if not fault:
            self._sums += np.nan_to_num(statistics)
            self._counts += ~np.isnan(statistics)  # of some minibatches a statistic says nothing
            self._client.after_minibatch()
        else:
            self._client.reject_minibatch(fault)

    def metrics(self) -> dict[str, float]:
        """The agent's own columns of metrics.csv, loss and norm of the gradient, of the time since the last call."""
        row = dict.fromkeys(self._agent.metrics, float("nan"))
        return row | self.take_statistics() | self._agent.schedules(self._client.env_steps)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """What it needs to go on, its experience aside: arrays, and plain values for JSON."""
        slots = {f"{_SLOT}{name}": value for name, value in self._client.slots().items()}
        return slots, {"has_learned": self.has_learned, "learner_rng": self._rng.bit_generator.state}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any], *, has_experience: bool) -> None:
        """Puts `state()` back, from among other things. Raises ValueError where it is the state of another agent.

        Args:
          has_experience: else there is nothing to learn from, and all begins anew but for the slots.
        """
        slots = {name.removeprefix(_SLOT): array for name, array in arrays.items() if name.startswith(_SLOT)}
        self._client.restore_slots(slots)
        self._rng.bit_generator.state = values["learner_rng"]
        if has_experience:
            self.has_learned = values["has_learned"]

    def take_statistics(self) -> dict[str, float]:
        """Means of loss and statistics over the finite minibatches since the last call; NaN where there were none."""
        means = np.where(self._counts, self._sums / np.maximum(self._counts, 1), np.nan)
        self._sums, self._counts = np.zeros((2, len(self._names)))
        return dict(zip(self._names, means.tolist(), strict=True))


def _cause(batch: Any, largest_reward: float) -> str:
    """Why the loss of this minibatch may not be finite: its data, or else the optimizer.

    Only what came from environments says so: returns and advantages are large too where a network has diverged.
    """
    sizes = {"a reward": largest_reward}
    for name, column in zip(batch._fields, batch, strict=True):
        is_observed = column.ndim > 2 and name != "action"  # stacked observations [B, S, ...]
        if column.dtype.kind == "f" and (name == "r_t" or is_observed):
            sizes["a reward" if name == "r_t" else "an observation"] = float(np.abs(column).max())
    for name, size in sizes.items():
        if not size <= _LARGE:  # or NaN
            return f"the data are the cause ({name} of size {size:.3g}), not the optimizer: scale them down"
    return OPTIMIZER
