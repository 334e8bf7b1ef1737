"""A3C: its loss with numbers worked out by hand, and the returns that it learns from."""

import math

import numpy as np
import pytest
import tensorflow as tf
from rollout_helpers import fill

from async_dqn.agents.a3c import Batch, Sequences
from async_dqn.agents.table import make_config
from async_dqn.base.errors import UserError
from async_dqn.data.experience import Step
from async_dqn.run import build


def make_agent(**overrides):
    return build.make_agent(make_config("a3c", "cartpole", {"env": "CartPole-v1"} | overrides))


def loss_of(logits, value, *, action, advantage, return_, entropy_cost=0.0, **settings):
    """The loss where the network says `logits` and `value`, and its gradients by these, advantages and returns."""
    agent = make_agent(**settings)
    logits, value, advantage, return_ = (tf.constant(one, tf.float32) for one in (logits, value, advantage, return_))
    agent.apply = lambda params, observation: {"logits": logits, "value": value[:, None]}
    with tf.GradientTape() as tape:
        tape.watch([logits, value, advantage, return_])
        batch = Batch(None, tf.constant(action), advantage, return_, tf.fill(advantage.shape, entropy_cost))
        loss = agent.loss({}, {}, batch, tf.constant([0, 0]))
    assert tuple(loss.statistics) == agent.metrics
    return loss, tape.gradient(loss.value, [logits, value, advantage, return_])


def test_the_loss_by_hand():
    loss, gradients = loss_of(
        [[0, 0], [0, math.log(3)]],
        [3, 2],
        action=[0, 1],
        advantage=[2, -4],
        return_=[1, 2],
        value_cost=0.25,
        entropy_cost=0.1,
    )
    # The policy is (1/2, 1/2) and (1/4, 3/4).
    policy = (-2 * math.log(1 / 2) + 4 * math.log(3 / 4)) / 2
    value = 0.5 * ((3 - 1) ** 2 + 0) / 2
    entropy = (math.log(2) - (1 / 4 * math.log(1 / 4) + 3 / 4 * math.log(3 / 4))) / 2
    found = {name: float(one) for name, one in loss.statistics.items()}
    expected = {
        "entropy": entropy,
        "explained_variance": 1 - 1 / 0.25,  # return - value is -2 and 0, of variance 1
        "policy_loss": policy,
        "value_loss": value,
    }
    assert found == pytest.approx(expected, rel=1e-5)
    assert float(loss.value) == pytest.approx(policy + 0.25 * value - 0.1 * entropy, rel=1e-5)
    of_logits, of_value, of_advantage, of_return = gradients
    np.testing.assert_allclose(of_value, [0.25 * (3 - 1) / 2, 0], rtol=1e-5)
    assert of_advantage is None and of_return is None
    # By the logits log pi(a) has the gradient 1 - pi at a and -pi elsewhere, the entropy H that of -pi (log pi + H).
    uneven = -(1 / 4 * math.log(1 / 4) + 3 / 4 * math.log(3 / 4))
    of_entropy = [-1 / 4 * (math.log(1 / 4) + uneven), -3 / 4 * (math.log(3 / 4) + uneven)]
    np.testing.assert_allclose(of_logits[0], [-2 * 0.5 / 2, 2 * 0.5 / 2], rtol=1e-5)  # at the most, H is flat
    np.testing.assert_allclose(
        of_logits[1], [4 * -1 / 4 / 2 - 0.1 * of_entropy[0] / 2, 4 * 1 / 4 / 2 - 0.1 * of_entropy[1] / 2], rtol=1e-5
    )


def test_advantages_are_normalised_where_asked():
    given = {"logits": [[0, 0], [0, 0], [0, 0]], "value": [0, 0, 0], "action": [0, 1, 0], "return_": [0, 0, 0]}
    loss, _ = loss_of(**given, advantage=[5, 9, 1], normalize_advantages=True)
    deviation = math.sqrt((0**2 + 4**2 + 4**2) / 3)
    expected, _ = loss_of(**given, advantage=[0, 4 / deviation, -4 / deviation])
    assert float(loss.value) == pytest.approx(float(expected.value), rel=1e-5, abs=1e-6)
    uneven, _ = loss_of(
        **(given | {"logits": [[2, 0], [0, 1], [0, 0]]}), advantage=[5, 9, 1], normalize_advantages=True
    )
    by_hand = [0, 4 / deviation * math.log(1 / (1 + math.exp(-1))), -4 / deviation * math.log(1 / 2)]
    assert float(uneven.statistics["policy_loss"]) == pytest.approx(-sum(by_hand) / 3, rel=1e-4)


def test_the_entropy_bonus_makes_the_policy_more_even():
    _, gradients = loss_of(
        [[1, 0], [0, 1]], [0, 0], action=[0, 0], advantage=[0, 0], return_=[0, 0], entropy_cost=1.0, value_cost=0.0
    )
    assert (np.sign(gradients[0]) == [[1, -1], [-1, 1]]).all()  # down this slope the larger logit falls


def outputs(stacked):
    """The value is the square of the observation."""
    seen = stacked[:, 0, 0]
    return {"value": (seen**2)[:, None], "logits": np.stack([seen, 0 * seen], 1)}


def test_a_rollout_is_one_minibatch_of_the_returns_that_the_paper_s_loop_gives():
    """Algorithm S3: R is 0 after a terminal state and else the value of the last one, then R <- r + gamma R."""
    discount, length, num_envs = 0.9, 6, 2
    agent = make_agent(envs_per_worker=num_envs, t_max=length, discount=discount, trace=1.0)
    rewards = np.random.default_rng(0).normal(size=(length, num_envs)).astype(np.float32)
    terminated, truncated = np.zeros((2, length, num_envs), bool)
    terminated[1, 0] = truncated[3, 1] = True
    experience = agent.make_experience(num_envs, outputs)
    for _ in range(2):
        fill(experience, rewards, terminated, truncated, outputs)
        assert experience.due() == 1
        experience.draw(np.random.default_rng(0), 0)
        assert experience.due() == 0
    batch = experience.batch

    for n in range(num_envs):
        expected = length**2  # the value of what the last step led to
        for t in reversed(range(length)):
            if terminated[t, n]:
                expected = 0
            if truncated[t, n]:
                expected = (t + 101) ** 2
            expected = rewards[t, n] + discount * expected
            row = t * num_envs + n
            assert (batch.observation[row, 0, 0], batch.action[row]) == (t, n)
            assert batch.return_[row] == pytest.approx(expected, rel=1e-5)
            assert batch.advantage[row] == pytest.approx(expected - t**2, rel=1e-4, abs=1e-4)


def test_with_a_trace_of_0_the_advantages_are_one_step_errors():
    agent = make_agent(envs_per_worker=1, t_max=3, discount=0.9, trace=0.0)
    experience = agent.make_experience(1, outputs)
    none = np.zeros((3, 1), bool)
    fill(experience, np.float32([[1], [2], [3]]), none, none, outputs)
    experience.draw(np.random.default_rng(0), 0)
    np.testing.assert_allclose(
        experience.batch.advantage, [1 + 0.9 * 1 - 0, 2 + 0.9 * 4 - 1, 3 + 0.9 * 9 - 4], rtol=1e-6
    )


def test_continuous_actions_come_from_a_gaussian():
    agent = build.make_agent(make_config("a3c", "pendulum", {"env": "Pendulum-v1"}))
    rng = np.random.default_rng(0)
    params = {module.name: module.init(rng) for module in agent.modules}
    said = agent.apply(params, rng.normal(size=(3, 1, 3)).astype(np.float32))
    assert said.keys() == agent.network_outputs.keys() == {"mean", "log_std", "value"}
    action = agent.act({name: one.numpy() for name, one in said.items()}, rng, 0)
    assert (action.shape, action.dtype) == ((3, 1), np.float32)
    observation = rng.normal(size=(3, 1, 3)).astype(np.float32)
    batch = Batch(*map(tf.constant, (observation, action, *np.ones((3, 3), np.float32))))
    statistics = agent.loss(params, {}, batch, tf.constant([0, 0])).statistics
    assert float(statistics["entropy"]) == pytest.approx(0.5 * math.log(2 * math.pi * math.e), rel=1e-6)


def test_one_network_or_two():
    (shared,), (policy, value) = (make_agent(share_torso=shared).modules for shared in (True, False))
    assert (shared.name, policy.name, value.name) == ("policy_value", "policy", "value")
    assert not any(module.has_target for module in (shared, policy, value))
    assert shared.size < policy.size + value.size


def test_the_first_policy_is_nearly_even():
    for share_torso in (True, False):
        agent = make_agent(share_torso=share_torso)
        rng = np.random.default_rng(0)
        params = {module.name: module.init(rng) for module in agent.modules}
        found = agent.apply(params, np.random.default_rng(1).normal(size=(9, 1, 4)).astype(np.float32))
        assert np.abs(found["logits"]).max() < 0.05
        assert agent.values({name: one.numpy() for name, one in found.items()}).shape == (9,)


@pytest.mark.parametrize(("of", "others"), [("policy", "value"), ("value", "policy")])
def test_of_two_networks_each_learns_from_its_own_term(of, others):
    agent = make_agent(share_torso=False, **({"value_cost": 0.0} if of == "policy" else {}))
    rng = np.random.default_rng(0)
    params = {module.name: {k: tf.constant(v) for k, v in module.init(rng).items()} for module in agent.modules}
    advantage, entropy_cost = {"policy": ([1.0, -2.0], [0.1, 0.1]), "value": ([0.0, 0.0], [0.0, 0.0])}[of]
    observation = tf.constant(rng.normal(size=(2, 1, 4)), tf.float32)
    batch = Batch(observation, tf.constant([0, 1]), *map(tf.constant, (advantage, [5.0, 6.0], entropy_cost)))
    with tf.GradientTape() as tape:
        tape.watch(params)
        loss = agent.loss(params, {}, batch, tf.constant([0, 0])).value
    gradients = tape.gradient(loss, params, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert all(np.abs(one).max() > 0 for one in gradients[of].values())
    assert all(np.abs(one).max() == 0 for one in gradients[others].values())


def remembering(share_torso=True, **settings):
    """An agent with an LSTM, and its first parameters."""
    agent = make_agent(lstm=True, share_torso=share_torso, **settings)
    rng = np.random.default_rng(0)
    return agent, {module.name: {k: tf.constant(v) for k, v in module.init(rng).items()} for module in agent.modules}


def played(agent, params, length, num_envs, ends=(), seed=0):
    """A full rollout of made-up steps, in which these (t, n) terminate: the experience, and its steps.

    It begins in the middle of the games.
    """

    def evaluate(stacked, recurrent_state):
        return {name: one.numpy() for name, one in agent.apply(params, stacked, recurrent_state).items()}

    experience, rng, taken = agent.make_experience(num_envs, evaluate), np.random.default_rng(seed), []
    recurrent_state = rng.normal(size=(num_envs, agent.recurrent_size)).astype(np.float32)
    observation = rng.normal(size=(num_envs, 4)).astype(np.float32)
    for t in range(length):
        outputs = evaluate(observation[:, None], recurrent_state)
        action = agent.act(outputs, rng, 0)
        ended = np.array([(t, n) in ends for n in range(num_envs)])
        following, never = rng.normal(size=(num_envs, 4)).astype(np.float32), np.zeros(num_envs, bool)
        reward = rng.normal(size=num_envs).astype(np.float32)
        step = Step(
            observation, observation[:, None], action, outputs, reward, ended, never, following, recurrent_state
        )
        experience.add(step, num_envs)
        taken.append(step)
        recurrent_state = np.where(ended[:, None], np.float32(0), outputs["recurrent_state"])
        observation = following
    return experience, taken


@pytest.mark.parametrize("share_torso", [True, False])
def test_what_is_learned_from_is_what_was_said_when_acting(share_torso):
    """On the same parameters the loss sees the outputs of the steps, whose recurrent state was cleared at ends."""
    length, num_envs = 5, 3
    agent, params = remembering(share_torso, envs_per_worker=num_envs, t_max=length)
    experience, taken = played(agent, params, length, num_envs, ends=[(1, 0), (2, 0), (4, 1)])
    assert agent.recurrent_size == 512 * (1 if share_torso else 2)
    experience.draw(np.random.default_rng(0), 0)
    batch = Sequences(*map(tf.constant, experience.batch))
    outputs, flat = agent._outputs(params, batch)
    assert outputs.keys() | {"recurrent_state"} == agent.network_outputs.keys()
    for name, one in outputs.items():
        expected = np.stack([step.outputs[name] for step in taken], axis=1).reshape(one.shape)
        np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(flat.action, np.stack([step.action for step in taken], axis=1).ravel())
    last = taken[-1]
    after = agent.apply(params, last.next_observation[:, None], last.outputs["recurrent_state"])["value"].numpy()[:, 0]
    expected = last.reward + np.where(last.terminated, 0, 0.99 * after)
    np.testing.assert_allclose(batch.return_[:, -1], expected, rtol=1e-4, atol=1e-5)


def test_steps_that_were_taken_back_do_not_count():
    agent, params = remembering(envs_per_worker=2, t_max=4)
    experience, _ = played(agent, params, 4, 2)
    experience.truncate(np.array([1]))
    experience.draw(np.random.default_rng(0), 0)
    batch = Sequences(*map(tf.constant, experience.batch))
    np.testing.assert_array_equal(batch.counts, [[True] * 4, [True] * 3 + [False]])
    whole = agent.loss(params, {}, batch, tf.constant([0, 0]))
    wild = tf.where(batch.counts, 0.0, 1e6)
    spoilt = batch._replace(advantage=batch.advantage + wild, return_=batch.return_ + wild)
    same = agent.loss(params, {}, spoilt, tf.constant([0, 0]))
    assert float(whole.value) == float(same.value)
    assert {name: float(one) for name, one in whole.statistics.items()} == {
        name: float(one) for name, one in same.statistics.items()
    }


def test_gradients_reach_every_parameter_of_the_lstm():
    agent, params = remembering(envs_per_worker=2, t_max=4)
    experience, _ = played(agent, params, 4, 2)
    experience.draw(np.random.default_rng(0), 0)
    with tf.GradientTape() as tape:
        tape.watch(params)
        loss = agent.loss(params, {}, Sequences(*map(tf.constant, experience.batch)), tf.constant([0, 0])).value
    for name, one in tape.gradient(loss, params)["policy_value"].items():
        assert np.abs(one).max() > 0, name


def test_on_its_own_policy_v_trace_gives_the_returns_of_n_steps_from_what_was_remembered():
    columns = []
    for vtrace in (False, True):
        agent, params = remembering(envs_per_worker=2, t_max=4, parallelism="data", vtrace=vtrace, trace=1.0)
        experience, _ = played(agent, params, 4, 2, ends=[(1, 0)])
        experience.draw(np.random.default_rng(0), 0)
        columns.append(experience.batch)
    for one, other in zip(*columns, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_v_trace_looks_ahead_from_what_the_present_parameters_remember():
    agent, params = remembering(envs_per_worker=2, t_max=4, parallelism="data", vtrace=True)
    others = {name: {key: 1.5 * value for key, value in own.items()} for name, own in params.items()}
    experience, taken = played(agent, others, 4, 2)

    def present(*arguments):
        return {name: one.numpy() for name, one in agent.apply(params, *arguments).items()}

    experience._evaluate = present
    experience._prepare = lambda rollout: agent._prepare(rollout, present)
    remembered = taken[0].recurrent_state
    for step in taken:
        outputs = present(step.stacked, remembered)
        remembered = outputs["recurrent_state"]
    last, value = taken[-1], outputs["value"][:, 0]
    after = present(last.next_observation[:, None], remembered)["value"][:, 0]
    log_prob = agent._policy.log_prob_of
    rho = np.minimum(1, np.exp(log_prob(outputs, last.action) - log_prob(last.outputs, last.action)))
    stale = present(last.next_observation[:, None], last.outputs["recurrent_state"])["value"][:, 0]
    assert np.abs(after - stale).min() > 1e-3
    experience.draw(np.random.default_rng(0), 0)
    found = Sequences(*experience.batch).return_[:, -1]
    np.testing.assert_allclose(found, value + rho * (last.reward + 0.99 * after - value), rtol=1e-4, atol=1e-5)


def test_time_is_unrolled_so_far_and_no_further():
    assert make_agent(lstm=True, t_max=256).config.t_max == 256
    with pytest.raises(UserError, match="--t_max=257: with --lstm at most 256"):
        make_agent(lstm=True, t_max=257)


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        ({}, "async"),
        ({"store": "shared_memory"}, "locked"),  # by parameters that nobody else changes while it plays
        ({"store": "shared_memory", "update_mode": "hogwild"}, "hogwild"),
        ({"store": "shared_memory", "update_mode": "auto"}, "locked"),
    ],
)
def test_its_workers_play_by_a_copy_of_their_own_unless_told_otherwise(settings, mode):
    assert make_config("a3c", "cartpole", settings).mode == mode
