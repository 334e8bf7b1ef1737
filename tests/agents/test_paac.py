"""PAAC: A3C's update over all environments, and only where none of them can be stale."""

import pytest

from async_dqn.agents import a3c, paac
from async_dqn.agents.table import make_config
from async_dqn.base.errors import UserError


def test_it_is_a3c_but_for_its_settings():
    own = vars(paac.PAAC).keys() & vars(a3c.A3C).keys()
    assert {name for name in own if not name.startswith("_")} == {"Config", "presets", "summary"}


def test_the_step_size_of_the_paper_grows_with_the_environments():
    config = make_config("paac", "paper", {})
    assert config.learning_rate == 0.0007 * config.envs_per_worker
    assert (config.envs_per_worker, config.t_max, config.max_gradient_norm) == (32, 5, 40)
    assert (config.optimizer, config.rmsprop_decay, config.optimizer_epsilon) == ("rmsprop", 0.99, 0.1)


@pytest.mark.parametrize("num_workers", [2, 9])
def test_several_workers_that_push_when_they_please_are_refused(num_workers):
    with pytest.raises(UserError, match=rf"^--num_workers={num_workers}: .*--agent=paac.* baseline"):
        make_config("paac", "cartpole", {"num_workers": num_workers})
