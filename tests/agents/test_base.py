"""What agents are made of: the optimizer and the rate of the settings."""

import pytest

from async_dqn.agents.base import make_optimizer
from async_dqn.settings.config import Config


@pytest.mark.parametrize("num_workers", [1, 2, 3, 16])
@pytest.mark.parametrize("averages", ["own", "shared"])
def test_averages_change_adam_s_betas_for_any_number_of_workers_if_they_are_shared(averages, num_workers):
    config = Config(averages=averages, num_workers=num_workers, local_steps=4)
    power = num_workers if averages == "shared" else 1
    slots = make_optimizer(config).initial_slots(1)
    assert slots["beta_powers"] == pytest.approx([0.9**power, 0.999**power])  # as they begin
