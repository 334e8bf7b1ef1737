"""The learner: what it hands to the client and what not, by an agent whose loss the test decides."""

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from fakes import delta_client, descent, direct_client, gradient_client

from async_dqn.agents.base import Loss
from async_dqn.base.errors import RunFailed, UserError
from async_dqn.base.schedules import constant
from async_dqn.nn import optimizers
from async_dqn.nn.aligned import aligned_empty
from async_dqn.nn.layout import Layout
from async_dqn.nn.module import Module
from async_dqn.run.learner import Learner
from async_dqn.store.local import LocalParameterStore


class Batch(NamedTuple):
    slope: np.ndarray  # [1] the gradient of both modules, all along
    offset: np.ndarray  # [1] the loss


class Script:
    """Experience that draws one scripted minibatch after the other, all of which are due."""

    def __init__(self, *minibatches):
        self.batch, self._minibatches = Batch(*(aligned_empty((1,), np.float32) for _ in Batch._fields)), [*minibatches]

    def due(self):
        return len(self._minibatches)

    def draw(self, rng, step):
        self.batch.slope[:], self.batch.offset[:] = self._minibatches.pop(0)


class Parts:
    def __init__(
        self,
        make_client,
        *minibatches,
        max_gradient_norm=0.0,
        max_mean_norm=0.0,
        metrics=("twice",),
        scheduled=(),
        **options,
    ):
        modules = [
            Module(name, Layout({"w": (16,)}), None, descent(), constant(rate), False)
            for name, rate in (("a", 1.0), ("b", 0.5))
        ]
        self.num_traces = 0
        self.store = LocalParameterStore(modules, total_steps=100)
        if make_client is delta_client:
            options["optimizer"] = descent()
            self.store = LocalParameterStore(
                [one._replace(optimizer=optimizers.add()) for one in modules], total_steps=100
            )
        self.client = make_client(self.store, **options)
        self.learner = Learner(
            SimpleNamespace(
                modules=modules,
                trained=modules,
                loss=self.loss,
                metrics=metrics,
                schedules=lambda step: dict.fromkeys(scheduled, 0.0),
                config=SimpleNamespace(agent="mine", max_gradient_norm=max_gradient_norm, max_mean_norm=max_mean_norm),
            ),
            self.client,
            Script(*minibatches),
            rng=np.random.default_rng(0),
        )

    def loss(self, params, targets, batch, seed):
        self.num_traces += 1
        total = tf.reduce_sum(params["a"]["w"]) + tf.reduce_sum(params["b"]["w"])
        zero = total - tf.stop_gradient(total)
        value = tf.math.multiply_no_nan(batch.slope[0], zero) + batch.offset[0]  # finite, whatever the slope is
        return Loss(value, {"twice": 2 * value})

    def online(self):
        return [float(self.store.pull().online[name][0]) for name in ("a", "b")]


EVERY_CLIENT = pytest.mark.parametrize("make_client", [direct_client, gradient_client, delta_client])
NAN, INF = np.nan, np.inf


@EVERY_CLIENT
def test_minibatches_that_are_not_finite_are_passed_over_and_the_rest_counts(make_client):
    parts = Parts(make_client, (1, 2), (NAN, 0), (1, NAN), (4, 6), (INF, 1), (1, -INF))
    parts.learner.learn()
    parts.client.finish()
    assert parts.online() == [-(1 + 4), -0.5 * (1 + 4)]
    counters = parts.store.pull().counters
    assert (counters.minibatches, counters.nonfinite, counters.updates) == (6, 4, 2)
    found = parts.learner.take_statistics()
    assert np.isnan(found.pop("gradient_norm"))  # nobody asked for it
    assert found == {"loss": (2 + 6) / 2, "twice": 2 + 6}
    assert all(np.isnan(list(parts.learner.take_statistics().values())))  # none since
    assert parts.num_traces == 1


def test_a_statistic_that_the_metrics_do_not_name_is_told():
    with pytest.raises(UserError, match="^--agent=mine: its loss gives the statistics twice, which its metrics do not"):
        Parts(direct_client, metrics=("once",))
    with pytest.raises(UserError, match="^--agent=mine: its schedules give epsilon, which its metrics do not name"):
        Parts(direct_client, scheduled=("epsilon",))


@EVERY_CLIENT
@pytest.mark.parametrize("bad", [(NAN, 1), (1, NAN)], ids=["gradient", "loss"])
def test_too_many_in_a_row_end_the_run(make_client, bad):
    parts = Parts(make_client, bad, bad, (1, 1), bad, bad, bad, (1, 1), max_nonfinite=3)
    with pytest.raises(RunFailed):
        parts.learner.learn()
    assert parts.client.own_minibatches == 6
    assert parts.online() == [-1, -0.5]


def test_gradients_of_all_modules_are_clipped_together():
    parts = Parts(gradient_client, (3, 0), max_gradient_norm=1.0)
    parts.learner.learn()
    scaled = 3 / np.sqrt(2 * 16 * 3**2)
    assert parts.online() == pytest.approx([-scaled, -0.5 * scaled])
    assert parts.learner.take_statistics()["gradient_norm"] == pytest.approx(np.sqrt(2 * 16 * 3**2))


def test_gradients_whose_mean_is_clipped_are_left_alone():
    parts = Parts(gradient_client, (3, 0), max_gradient_norm=1.0, max_mean_norm=1.0)
    parts.learner.learn()
    assert parts.online() == [-3, -0.5 * 3]
    assert parts.learner.take_statistics()["gradient_norm"] == pytest.approx(np.sqrt(2 * 16 * 3**2))


def test_a_norm_that_overflows_is_not_finite():
    """Though the gradients, scaled down by it, would all be zero."""
    parts = Parts(gradient_client, (1e25, 0), (3, 0), max_gradient_norm=1e9)
    parts.learner.learn()
    parts.client.finish()
    assert parts.online() == [-3, -0.5 * 3]
    assert parts.store.pull().counters.nonfinite == 1


def test_it_pulls_before_its_first_minibatch():
    parts = Parts(gradient_client, (1, 0))
    parts.store.initialize({name: np.full(16, 8, np.float32) for name in ("a", "b")})  # others went on
    assert not parts.learner.has_learned
    parts.learner.learn()
    assert parts.learner.has_learned
    assert parts.client.online["a"].numpy()[0] == parts.online()[0] == 8 - 1


@pytest.mark.parametrize(
    ("slope", "offset", "largest_reward", "cause"),
    [
        (1.0, np.nan, 1.0, "the optimizer is the cause, not the data: a lower --learning_rate"),
        (np.inf, 1.0, 1.0, "the optimizer is the cause"),
        (1.0, np.nan, 1e30, r"the data are the cause \(a reward of size 1e\+30\), not the optimizer"),
    ],
)
def test_the_cause_is_named(slope, offset, largest_reward, cause):
    parts = Parts(direct_client, (slope, offset), max_nonfinite=1)
    parts.learner.hear(np.array([[0.0, -largest_reward]]))
    with pytest.raises(RunFailed, match=f"^1 minibatches in a row .* none of them was applied; {cause}"):
        parts.learner.learn()
