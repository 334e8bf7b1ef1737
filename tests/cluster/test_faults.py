"""Tests of what a run survives: the short version of launch/chaos.sh, with fixed seeds."""

import dataclasses

import pytest
from chaos.rounds import Round, Settings
from chaos.scenarios import SCENARIOS, Scenario, make_round, play

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1_200)]

# Deadlines are for what hangs: a slow machine needs seven minutes for the longest of them.
SETTINGS = Settings(total_steps=4_500, flags=["--warmup_steps=300"], deadline=540.0)
FEW = SETTINGS._replace(total_steps=2_000)  # enough for a fault that leaves one worker most of the work
ROLLOUTS = Settings(total_steps=60_000, flags=["--agent=ppo"], deadline=540.0)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


def _play(scenario: Scenario, tmp_path, settings: Settings = SETTINGS, seed: str = "0") -> Round:
    """Fails with all that did not hold, or where a command does not end in time."""
    round_ = make_round(scenario, seed, settings, tmp_path / "round")
    try:
        found = play(scenario, round_)
        assert found == [], round_.output()
    finally:
        round_.close()
    return round_


@pytest.mark.parametrize(
    ("name", "seed", "mode"),
    [
        ("kill-worker-training", "13", "--local_steps=4"),
        ("kill-chief-training", "0", "--update_mode=sync"),
        ("kill-chief-training", "1", "--overlap"),
        ("kill-ps-0-training", "9", "--update_mode=sync"),
        ("freeze-worker-1-long", "3", "--local_steps=0"),
        ("corrupt-checkpoint-arrays", "0", "--local_steps=4"),
        ("not-finite", "0", "--local_steps=0"),
    ],
)
def test_what_is_promised_holds(tmp_path, name, seed, mode):
    round_ = _play(BY_NAME[name], tmp_path, FEW if name.startswith("freeze") else SETTINGS, seed)
    assert mode in round_.mode  # which the seed has drawn, as so many parameter servers and workers
    assert "had ended before" not in "".join(round_.notes)  # or the fault was none


def test_an_agent_of_rollouts_survives_a_killed_worker_too(tmp_path):
    round_ = _play(BY_NAME["kill-worker-training"], tmp_path, ROLLOUTS)
    assert "had ended before" not in "".join(round_.notes)


@pytest.mark.parametrize(("name", "seed"), [("signal-chief", "81"), ("signal-worker", "8"), ("signal-ps", "0")])
def test_a_signal_to_one_process_ends_the_run_in_order(tmp_path, name, seed):
    once = dataclasses.replace(BY_NAME[name], resumes=False, is_finished=False, checks=[])
    round_ = _play(once, tmp_path, seed=seed)
    assert round_.summary()["exit_reason"] == "interrupted"
    assert 0 < round_.summary()["env_steps"] < round_.total


def test_every_scenario_has_its_own_name():
    assert len(BY_NAME) == len(SCENARIOS) >= 50
