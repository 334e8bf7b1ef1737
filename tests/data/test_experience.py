"""Replay as the learner sees it: what is due, and from when on."""

import numpy as np
import pytest

from async_dqn.data.experience import ReplayExperience, Step
from async_dqn.data.replay import Replay


class Game:
    """Environments whose observation is the number of the step."""

    def __init__(self, *, num_envs=1, train_period=4, warmup_steps=3, stack=1):
        replay = Replay(
            num_envs=num_envs,
            capacity=num_envs * 100,
            observation_shape=(1,),
            observation_dtype=np.float32,
            stack=stack,
            n_step=1,
            discount=0.9,
        )
        self.num_envs = num_envs
        self.experience = ReplayExperience(replay, batch_size=5, train_period=train_period, warmup_steps=warmup_steps)
        self._number = 0

    def add(self, num_steps=None, spoilt=()):
        observation, following = (np.full((self.num_envs, 1), self._number + one, np.float32) for one in (0, 1))
        zeros = np.zeros(self.num_envs)
        step = Step(
            observation=observation,
            stacked=observation[:, None],
            action=zeros.astype(np.int32),
            outputs={},
            reward=zeros + self._number,
            terminated=zeros > 0,
            truncated=zeros > 0,
            next_observation=following,
        )
        self.experience.add(step, self.num_envs if num_steps is None else num_steps)
        if len(spoilt):
            self.experience.truncate(np.array(spoilt))
        self._number += 1


@pytest.mark.parametrize(("num_envs", "train_period"), [(1, 1), (1, 4), (2, 4), (3, 2), (8, 4), (5, 7)])
def test_a_minibatch_is_due_for_every_period_after_warm_up_and_none_before(num_envs, train_period):
    warmup_steps = 3 * num_envs
    game = Game(num_envs=num_envs, train_period=train_period, warmup_steps=warmup_steps)
    rng, drawn = np.random.default_rng(0), 0
    for number in range(1, 21):
        game.add()
        # The newest step of each environment cannot be sampled yet, so after 4 there are 3 * num_envs.
        warm_steps = max(0, number - 3) * num_envs
        assert game.experience.due() == warm_steps // train_period - drawn
        for _ in range(game.experience.due()):
            game.experience.draw(rng, 0)
            drawn += 1
            batch = game.experience.batch
            np.testing.assert_array_equal(batch.r_t, batch.s_tm1[:, 0, 0])
            assert batch.r_t.max() < number - 1


def test_steps_that_do_not_count_call_for_nothing():
    game = Game(num_envs=4, train_period=1, warmup_steps=1)
    game.add()
    game.add(num_steps=1)
    assert game.experience.due() == 1
    game.add(num_steps=2)
    assert game.experience.due() == 1 + 2


def test_a_replay_that_is_full_is_warm_whatever_was_asked_for():
    game = Game(num_envs=2, train_period=1, warmup_steps=200)  # the newest step of each cannot be sampled
    for _ in range(100):
        assert game.experience.due() == 0
        game.add()
    assert game.experience.due() == 2


def test_a_replay_that_was_warm_once_stays_so():
    game = Game(train_period=1, warmup_steps=60)
    for _ in range(61):
        game.add()
    assert (len(game.experience.ring), game.experience.due()) == (60, 1)
    for _ in range(50):  # games of one step take two slots, of which one begins a transition
        game.add()
        game.add(spoilt=[0])
    assert (len(game.experience.ring), game.experience.due()) == (50, 1 + 2 * 50)


def test_what_is_owed_is_saved_and_may_be_more_than_one_minibatch():
    saved, restored = Game(), Game()
    for _ in range(3 + 4 + 4 + 3):
        saved.add()
    assert saved.experience.due() == 2
    arrays, values = saved.experience.state()
    assert arrays == {}
    restored.experience.restore(arrays, values)
    assert restored.experience.due() == 2
    saved.add()
    restored.add()  # is not warm: its replay is empty
    assert (saved.experience.due(), restored.experience.due()) == (3, 2)


def test_no_transition_leads_from_before_a_new_beginning_to_after_it():
    game = Game(num_envs=1)
    game.add()
    game.add()
    game.experience.truncate()
    game.add()
    game.add()
    ring = game.experience.ring
    env, index = ring.valid_starts()
    batch = ring.gather(env, index, ring.make_batch(len(env)))
    assert (batch.s_t - batch.s_tm1 == 1).all()
    ring.check_valid()


def test_a_spoilt_step_is_never_drawn_and_the_game_ends_where_it_was_taken():
    game = Game(num_envs=2)
    for number in range(8):
        game.add(spoilt=[1] if number == 4 else ())
    ring = game.experience.ring
    ring.check_valid()
    env, index = ring.valid_starts()
    batch = ring.gather(env, index, ring.make_batch(len(env)))
    found = [(int(e), float(s[0, 0]), float(t[0, 0])) for e, s, t in zip(env, batch.s_tm1, batch.s_t, strict=True)]
    assert found == [(e, s, s + 1) for e in (0, 1) for s in range(7) if (e, s) != (1, 4)]
    assert (batch.discount_t > 0).all()  # the game was cut short, it did not terminate
