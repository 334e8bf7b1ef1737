"""PQN: its loss with numbers worked out by hand, and the returns of a rollout with ends in it."""

import numpy as np
import pytest
import tensorflow as tf
from rollout_helpers import fill_with_ends

from async_dqn.agents.pqn import Batch
from async_dqn.agents.table import make_config
from async_dqn.base.errors import UserError
from async_dqn.run import build


def make_agent(**overrides):
    return build.make_agent(make_config("pqn", "cartpole", {"env": "CartPole-v1"} | overrides))


def test_the_loss_and_its_gradient_by_hand():
    agent = make_agent()
    q_values = tf.constant([[1.0, 2.0], [3.0, 5.0]])
    agent.apply = lambda params, observation: {"q_values": q_values}
    return_ = tf.constant([4.0, 3.5])
    with tf.GradientTape() as tape:
        tape.watch([q_values, return_])
        loss = agent.loss({}, {}, Batch(None, tf.constant([1, 0]), return_), tf.constant([0, 0]))
    assert loss.statistics == {"q_mean": 3.5}
    assert float(loss.value) == pytest.approx(0.5 * ((2 - 4) ** 2 + (3 - 3.5) ** 2) / 2)
    of_q_values, of_return = tape.gradient(loss.value, [q_values, return_])
    np.testing.assert_allclose(of_q_values, [[0, (2 - 4) / 2], [(3 - 3.5) / 2, 0]])
    assert of_return is None


def test_returns_of_a_rollout_with_ends_in_it_are_those_of_the_definition():
    discount, trace, length, num_envs = 0.9, 0.8, 6, 2
    agent = make_agent(
        envs_per_worker=num_envs, rollout_length=length, batch_size=12, epochs=1, discount=discount, trace=trace
    )

    def outputs(stacked):  # the best action is worth the square of the observation
        seen = stacked[:, 0, 0]
        return {"q_values": np.stack([seen**2 - 5, seen**2], 1)}

    experience = agent.make_experience(num_envs, outputs)
    rewards, terminated, truncated = fill_with_ends(experience, outputs, length, num_envs)
    assert experience.due() == 1
    experience.draw(np.random.default_rng(0), 0)
    batch = experience.batch
    assert sorted(batch.observation[:, 0, 0]) == sorted([*range(length)] * num_envs)

    def expected(t, n):
        value = 0 if terminated[t, n] else (t + 1 + 100 * truncated[t, n]) ** 2
        if terminated[t, n] or truncated[t, n] or t == length - 1:
            return rewards[t, n] + discount * value
        return rewards[t, n] + discount * ((1 - trace) * value + trace * expected(t + 1, n))

    for observation, n, return_ in zip(batch.observation[:, 0, 0], batch.action, batch.return_, strict=True):
        assert return_ == pytest.approx(expected(int(observation), n), rel=1e-4)  # actions tell environments apart


def test_the_one_module_has_layer_norm_and_no_target():
    agent = make_agent()
    (module,) = agent.modules
    assert (module.name, module.has_target, agent.target_period, module.optimizer.name) == ("q", False, 0, "radam")
    assert {"hidden0/scale", "hidden1/offset"} <= module.layout.shapes.keys()


def test_a_minibatch_larger_than_a_rollout_is_refused():
    with pytest.raises(UserError, match=r"--batch_size=33\b.* 32 .*--rollout_length=8.*--envs_per_worker=4"):
        make_agent(rollout_length=8, envs_per_worker=4, batch_size=33)
