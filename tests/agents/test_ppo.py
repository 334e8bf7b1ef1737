"""PPO: its loss with numbers worked out by hand, and what it prepares of a rollout."""

import math

import numpy as np
import pytest
import tensorflow as tf
from rollout_helpers import fill_with_ends

from async_dqn.agents.ppo import Batch
from async_dqn.agents.table import make_config
from async_dqn.base.errors import UserError
from async_dqn.data.experience import Step
from async_dqn.run import build


def make_agent(**overrides):
    return build.make_agent(make_config("ppo", "cartpole", {"env": "CartPole-v1"} | overrides))


def loss_of(logits, value, batch, **settings):
    """The loss of PPO where the network says `logits` and `value`, and its gradients by these."""
    agent = make_agent(clip=0.2, **settings)
    logits, value = tf.constant(logits, tf.float32), tf.constant(value, tf.float32)
    agent.apply = lambda params, observation: {"logits": logits, "value": value[:, None]}
    with tf.GradientTape() as tape:
        tape.watch([logits, value])
        loss = agent.loss({}, {}, batch, tf.constant([0, 0]))
    assert tuple(loss.statistics) == agent.metrics
    return loss, *tape.gradient(loss.value, [logits, value])


def make_batch(old_probability, advantage, return_, entropy_cost=0.0):
    old_log_prob = np.log(np.float32(old_probability))
    action = np.zeros(len(advantage), np.int32)
    columns = (advantage, return_, [entropy_cost] * len(advantage))
    return Batch(None, *map(tf.constant, (action, *map(np.float32, columns), old_log_prob)))


def test_the_loss_by_hand():
    # Both steps: probability 1/2 of the action taken. Ratios 0.5 / 0.4 = 1.25, clipped to 1.2, and 0.5 / 0.5 = 1.
    # Advantages 7 and 3 are 1 and -1 when normalised, of which the losses are -1.2 * 1 and 1 * 1.
    batch = make_batch([0.4, 0.5], advantage=[7, 3], return_=[1, 2], entropy_cost=0.1)
    loss, of_logits, of_value = loss_of([[0, 0], [0, 0]], [3, 2], batch, value_cost=0.25, max_gradient_norm=0.0)
    policy, value, entropy = (-1.2 + 1) / 2, 0.5 * ((3 - 1) ** 2 + 0) / 2, math.log(2)
    found = {name: float(one) for name, one in loss.statistics.items()}
    assert found == pytest.approx(
        {
            "entropy": entropy,
            "clip_share": 1 / 2,
            "kl": (1.25 - 1 - math.log(1.25)) / 2,
            "explained_variance": 1 - 1 / 0.25,  # return - value is -2 and 0, of variance 1
            "policy_loss": policy,
            "value_loss": value,
        },
        rel=1e-5,
    )
    assert float(loss.value) == pytest.approx(policy + 0.25 * value - 0.1 * entropy, rel=1e-5)
    np.testing.assert_allclose(of_value, [0.25 * (3 - 1) / 2, 0], rtol=1e-5)
    # The first is clipped. The second's is that of its ratio by the logits, p - p ** 2 over p, times 1 / 2.
    np.testing.assert_allclose(of_logits, [[0, 0], [0.5 / 2, -0.5 / 2]], atol=1e-6)


def test_the_entropy_bonus_makes_the_policy_more_even():
    batch = make_batch([0.5, 0.5], advantage=[0, 0], return_=[0, 0], entropy_cost=1.0)
    _, of_logits, _ = loss_of([[1, 0], [0, 1]], [0, 0], batch)
    assert (np.sign(of_logits) == [[1, -1], [-1, 1]]).all()  # down this slope the larger logit falls


def test_what_is_prepared_of_a_rollout_with_ends_in_it_is_that_of_the_definition():
    discount, trace, length, num_envs = 0.9, 0.8, 6, 2
    agent = make_agent(
        envs_per_worker=num_envs, rollout_length=length, batch_size=12, epochs=1, discount=discount, trace=trace
    )

    def outputs(stacked):  # the value is the square of the observation, the policy depends on it too
        seen = stacked[:, 0, 0]
        return {"value": (seen**2)[:, None], "logits": np.stack([seen, 0 * seen], 1)}

    experience = agent.make_experience(num_envs, outputs)
    rewards, terminated, truncated = fill_with_ends(experience, outputs, length, num_envs)
    assert experience.due() == 1
    experience.draw(np.random.default_rng(0), 0)
    batch = experience.batch

    for row in range(length * num_envs):
        t = int(batch.observation[row, 0, 0])
        n = int(batch.action[row])  # as the actions tell the environments apart
        advantage, weight = 0.0, 1.0
        for later in range(t, length):
            next_value = 0 if terminated[later, n] else (later + 1 + 100 * truncated[later, n]) ** 2
            advantage += weight * (rewards[later, n] + discount * next_value - later**2)
            weight *= discount * trace
            if terminated[later, n] or truncated[later, n]:
                break
        assert batch.advantage[row] == pytest.approx(advantage, rel=1e-4)
        assert batch.return_[row] == pytest.approx(advantage + t**2, rel=1e-4)
        probability = math.exp(t) / (math.exp(t) + 1)
        log_prob = math.log(probability if n == 0 else 1 - probability)
        assert batch.old_log_prob[row] == pytest.approx(log_prob, rel=1e-4)


@pytest.mark.parametrize(("step", "expected"), [(0, 0.5), (60, 0.5 - 0.6 * 0.4), (500, 0.1)])
def test_the_entropy_bonus_falls_with_the_steps_of_all_workers(step, expected):
    agent = make_agent(
        rollout_length=8, epochs=2, batch_size=64, entropy_cost=0.5, final_entropy_cost=0.1, entropy_steps=100
    )

    def outputs(stacked):
        return {"value": np.zeros((len(stacked), 1)), "logits": np.zeros((len(stacked), 2))}

    experience = agent.make_experience(8, outputs)
    fill_with_ends(experience, outputs, 8, 8)
    for later in (0, 7):  # one value for a whole rollout
        experience.draw(np.random.default_rng(0), step + later)
        np.testing.assert_allclose(experience.batch.entropy_cost, np.full(64, expected), rtol=1e-6)


def test_actions_are_drawn_from_the_policy_and_the_same_by_the_same_seed():
    agent, outputs = make_agent(), {"logits": np.tile(np.log([[0.2, 0.8]]), (4_000, 1))}
    actions, again, other = (agent.act(outputs, np.random.default_rng(seed), 0) for seed in (0, 0, 1))
    assert actions.mean() == pytest.approx(0.8, abs=0.03)
    np.testing.assert_array_equal(actions, again)
    assert (actions != other).any()
    assert set(agent.greedy(outputs)) == {1}


def test_the_one_module_has_no_target_and_a_first_policy_that_is_nearly_even():
    agent = make_agent()
    (module,) = agent.modules
    assert (module.name, module.has_target, agent.target_period) == ("policy_value", False, 0)
    params = {module.name: module.init(np.random.default_rng(0))}
    outputs = agent.apply(params, np.random.default_rng(1).normal(size=(9, 1, 4)).astype(np.float32))
    assert np.abs(outputs["logits"]).max() < 0.05
    assert agent.values({name: one.numpy() for name, one in outputs.items()}).shape == (9,)


def test_continuous_actions_are_drawn_from_a_gaussian_whose_log_probability_is_learned_from():
    agent = build.make_agent(make_config("ppo", "pendulum", {"env": "Pendulum-v1", "rollout_length": 16}))
    (module,) = agent.modules
    assert agent.network_outputs.keys() == {"mean", "log_std", "value"}
    params = {"policy_value": {name: tf.constant(one) for name, one in module.init(np.random.default_rng(0)).items()}}

    def outputs(stacked):
        return {name: one.numpy() for name, one in agent.apply(params, stacked).items()}

    rng = np.random.default_rng(1)
    experience = agent.make_experience(8, outputs)
    zeros, never = np.zeros(8, np.float32), np.zeros(8, bool)
    for _ in range(16):
        seen = rng.normal(size=(8, 3)).astype(np.float32)
        said = outputs(seen[:, None])
        action = agent.act(said, rng, 0)
        assert (action.shape, action.dtype) == ((8, 1), np.float32)
        experience.add(Step(seen, seen[:, None], action, said, zeros, never, never, seen), 8)
    experience.draw(rng, 0)
    batch = Batch(*map(tf.constant, experience.batch))
    # The first deviation is 1, and no mean is far from 0.
    expected = -0.5 * batch.action[:, 0] ** 2 - 0.5 * math.log(2 * math.pi)
    np.testing.assert_allclose(batch.old_log_prob, expected, atol=0.2)
    loss = agent.loss(params, {}, batch, tf.constant([0, 0]))
    assert float(loss.statistics["clip_share"]) == 0  # nothing was learned yet
    assert float(loss.statistics["entropy"]) == pytest.approx(0.5 * math.log(2 * math.pi * math.e), rel=1e-6)


def test_a_minibatch_larger_than_a_rollout_is_refused():
    make_agent(rollout_length=8, envs_per_worker=4, batch_size=32)
    with pytest.raises(UserError, match=r"--batch_size=33\b.* 32 .*--rollout_length=8.*--envs_per_worker=4"):
        make_agent(rollout_length=8, envs_per_worker=4, batch_size=33)
