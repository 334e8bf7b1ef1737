"""What agents are made of: the optimizer and the rate of the settings."""

import numpy as np
import pytest
from fakes import delta_client, make_store, minibatch

from async_dqn.agents.base import make_optimizer
from async_dqn.settings.config import OPTIMIZERS, Config


@pytest.mark.parametrize("num_workers", [1, 2, 3, 16])
@pytest.mark.parametrize("averages", ["own", "shared"])
def test_averages_change_adam_s_betas_for_any_number_of_workers_if_they_are_shared(averages, num_workers):
    config = Config(averages=averages, num_workers=num_workers, local_steps=4)
    power = num_workers if averages == "shared" else 1
    slots = make_optimizer(config).initial_slots(1)
    assert slots["beta_powers"] == pytest.approx([0.9**power, 0.999**power])  # as they begin


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_shared_averages_forget_together_as_fast_as_one_optimizer_s(optimizer):
    config = Config(optimizer=optimizer, num_workers=2, local_steps=4, averages="shared")
    clients = [delta_client(make_store([0.0]), optimizer=make_optimizer(config)) for _ in range(2)]
    alone = delta_client(make_store([0.0]), optimizer=make_optimizer(Config(optimizer=optimizer)))
    for _ in range(5):  # all see the same gradient, one after the other
        for client in clients:
            minibatch(client, 2)
            minibatch(alone, 2)
    averages = {"q/m", "q/v", "q/ms", "q/mg"} & alone.slots().keys()
    assert averages
    for client in clients:
        for name in averages:
            np.testing.assert_allclose(client.slots()[name], alone.slots()[name], rtol=1e-4, err_msg=name)
