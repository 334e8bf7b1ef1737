"""Q-learning and Sarsa without replay: the loss by hand, and what is prepared of a rollout with ends in it."""

import numpy as np
import pytest
import tensorflow as tf
from rollout_helpers import fill

from async_dqn.agents.nstep_q import Batch
from async_dqn.agents.table import find, make_config
from async_dqn.envs import registry
from async_dqn.run import build

DISCOUNT = 0.9


def make_agent(**overrides):
    return build.make_agent(make_config("nstep_q", "cartpole", {"env": "CartPole-v1"} | overrides))


def test_the_loss_by_hand_and_no_gradient_to_the_target():
    """The first bootstraps from the best action by the target, the second from action 0, the third terminated."""
    agent = make_agent()
    online, target = tf.constant([[1.0, 2.0]] * 3), tf.constant([[5.0, 3.0], [4.0, 7.0], [9.0, 9.0]])
    agent.apply = lambda params, observation: {"q_values": params}
    batch = Batch(
        s_tm1=None,
        a_tm1=tf.constant([0, 1, 1]),
        r_t=tf.constant([0.5, 1.0, 2.5]),
        discount_t=tf.constant([0.9, 0.81, 0.0]),
        s_t=None,
        a_t=tf.constant([-1, 0, 1]),
    )
    with tf.GradientTape() as tape:
        tape.watch([online, target])
        loss = agent.loss(online, target, batch, tf.constant([0, 0]))
    errors = [0.5 + 0.9 * 5 - 1, 1 + 0.81 * 4 - 2, 2.5 - 2]
    assert float(loss.value) == pytest.approx(0.5 * sum(error**2 for error in errors) / 3)
    of_online, of_target = tape.gradient(loss.value, [online, target])
    np.testing.assert_allclose(of_online, [[-errors[0] / 3, 0], [0, -errors[1] / 3], [0, -errors[2] / 3]], rtol=1e-5)
    assert of_target is None


REWARDS = np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32)
TERMINATED, TRUNCATED = np.zeros((2, 9, 2), bool)
TERMINATED[1, 0] = TRUNCATED[2, 1] = TRUNCATED[3, 0] = TERMINATED[7, 1] = True
ACTIONS = np.random.default_rng(1).integers(0, 2, (9, 2)).astype(np.int32)


def batches(agent):
    """All that is learned from nine steps of two environments, by (step, environment)."""
    experience = agent.make_experience(2, lambda stacked: {"q_values": np.zeros((len(stacked), 2), np.float32)})
    found = {}
    for t in range(9):
        steps = slice(t, t + 1)
        fill(
            experience,
            REWARDS[steps],
            TERMINATED[steps],
            TRUNCATED[steps],
            lambda _: {"q_values": 0},
            ACTIONS[steps],
            t,
        )
        if experience.due():
            assert experience.due() == 1
            experience.draw(np.random.default_rng(0), 0)
            for row in zip(*(column.copy() for column in experience.batch), strict=True):
                found[tuple(int(one) for one in row[0][0, [0, 1]])] = Batch(*row)
    return found


@pytest.mark.parametrize("sarsa", [False, True])
@pytest.mark.parametrize("t_max", [1, 4])
def test_what_is_prepared_of_rollouts_with_ends_in_them_is_that_of_the_definition(t_max, sarsa):
    agent = make_agent(envs_per_worker=2, t_max=t_max, sarsa=sarsa, discount=DISCOUNT)
    found = batches(agent)
    learned = (
        8 if sarsa or t_max == 4 else 9
    )  # of the last steps the next action, or the rest of a rollout, is not known
    assert sorted(found) == [(t, n) for t in range(learned) for n in range(2)]
    for (t, n), row in found.items():
        end = t - t % t_max + t_max - 1
        last = next(later for later in range(t, end + 1) if TERMINATED[later, n] or TRUNCATED[later, n] or later == end)
        assert row.a_tm1 == ACTIONS[t, n]
        assert row.r_t == pytest.approx(
            sum(DISCOUNT**k * REWARDS[later, n] for k, later in enumerate(range(t, last + 1))), rel=1e-5
        )
        if TERMINATED[last, n]:
            assert row.discount_t == 0
            continue
        assert row.discount_t == pytest.approx(DISCOUNT ** (last - t + 1))
        np.testing.assert_array_equal(row.s_t[0, :2], [last + 1 + 100 * TRUNCATED[last, n], n])
        assert row.a_t == (ACTIONS[last + 1, n] if sarsa and not TRUNCATED[last, n] else -1)


def test_nothing_is_predicted_of_what_lies_after_a_rollout():
    """The target network values that, in the loss."""
    agent, calls = make_agent(envs_per_worker=2, t_max=1), []

    def evaluate(stacked):
        calls.append(len(stacked))
        return {"q_values": np.zeros((len(stacked), 2), np.float32)}

    experience = agent.make_experience(2, evaluate)
    fill(experience, REWARDS[:1], TERMINATED[:1], TRUNCATED[:1], lambda _: {"q_values": 0}, ACTIONS[:1], 0)
    experience.draw(np.random.default_rng(0), 0)
    assert calls == [2]  # to know what the outputs are


def test_the_one_module_has_a_target():
    agent = make_agent(target_period=70)
    (module,) = agent.modules
    assert (module.name, module.has_target, agent.target_period) == ("q", True, 70)


@pytest.mark.parametrize("preset", ["atari", "pong"])
def test_the_presets_for_atari_have_the_frame_counts_of_the_paper(preset):
    config = make_config("nstep_q", preset, {})
    frames = registry.resolve("pong", config.protocol).frame_skip
    assert config.t_max == 5
    assert config.target_period * config.t_max * config.envs_per_worker * frames == 40_000
    assert (config.rmsprop_decay, config.optimizer_epsilon) == (0.99, 0.1 / config.t_max**2)
    paper = make_config("nstep_q", "atari", {})
    assert (paper.exploration, paper.epsilon_steps * frames) == ("drawn", 4_000_000)


def test_the_default_target_period_is_that_of_the_paper_for_the_default_rollout():
    config = find("nstep_q").Config()
    assert config.target_period * config.t_max * config.envs_per_worker == 10_000
