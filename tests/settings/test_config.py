"""Settings: what is refused and in which words, presets, and the way through JSON."""

import dataclasses
import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_dqn.base.errors import UserError
from async_dqn.settings.config import _OF_ONE_PROCESS, PRESETS, Config, make_config


def test_defaults_are_valid():
    assert Config() == make_config("pong-fast", {f.name: f.default for f in dataclasses.fields(Config)})


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_valid_and_changes_what_it_names(preset):
    config = make_config(preset, {})
    assert {name: getattr(config, name) for name in PRESETS[preset]} == PRESETS[preset]


@pytest.mark.parametrize(
    ("setting", "paper"),
    [
        ("network", "nature"),
        ("double", False),
        ("center_frames", False),
        ("n_step", 1),
        ("batch_size", 32),
        ("discount", 0.99),
        ("train_period", 4),
        ("target_period", 10_000),
        ("replay_capacity", 1_000_000),
        ("warmup_steps", 50_000),
        ("epsilon_start", 1.0),
        ("epsilon_final", 0.1),
        ("epsilon_steps", 1_000_000 // 4),
        ("optimizer", "centered_rmsprop"),
        ("learning_rate", 0.00025),
        ("rmsprop_decay", 0.95),
        ("optimizer_epsilon", 0.01 / 32**2),  # of a mean over the minibatch; the paper's 0.01 is of a sum
        ("total_steps", 200_000_000 // 4),
        ("clip_rewards", True),
    ],
)
def test_the_nature_preset_is_that_of_the_paper(setting, paper):
    assert getattr(make_config("nature", {}), setting) == paper


def test_single_settings_override_the_preset():
    config = make_config("cartpole", {"batch_size": 7})
    assert (config.batch_size, config.network) == (7, "mlp")


@pytest.mark.parametrize(
    ("preset", "words"),
    [("natur", ["--preset=natur", "did you mean nature?"]), ("xyz", ["--preset=xyz", "must be one of nature"])],
)
def test_an_unknown_preset_is_named_with_those_there_are(preset, words):
    assert_refused(words + list(PRESETS), lambda: make_config(preset, {}))


def assert_refused(words, make):
    """`make` ends with a UserError of one line that holds all words."""
    with pytest.raises(UserError) as raised:
        make()
    message = str(raised.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("agent", "dqnn", ["--agent=dqnn", "did you mean dqn?", "one of dqn"]),
        ("network", "resnet", ["--network=resnet", "one of auto, nature, nips, mlp"]),
        ("protocol", "classical", ["--protocol=classical", "did you mean classic?", "classic, machado"]),
        ("optimizer", "sgd", ["--optimizer=sgd", "one of adam, rmsprop, centered_rmsprop"]),
        ("total_steps", 0, ["--total_steps=0", "at least 1"]),
        ("total_steps", -5, ["--total_steps=-5", "at least 1"]),
        ("seed", -1, ["--seed=-1", "at least 0"]),
        ("seed", 2**31, [f"--seed={2**31}", "at most"]),
        ("envs_per_worker", 0, ["--envs_per_worker=0", "at least 1 and at most 1024"]),
        ("envs_per_worker", 1025, ["--envs_per_worker=1025", "at least 1 and at most 1024"]),
        ("discount", 1.01, ["--discount=1.01", "at least 0 and at most 1"]),
        ("discount", float("nan"), ["--discount=nan", "must be a number"]),
        ("stop_at_return", float("nan"), ["--stop_at_return=nan", "not nan"]),
        ("learning_rate", -0.1, ["--learning_rate=-0.1", "at least 0"]),
        ("final_learning_rate", -0.5, ["--final_learning_rate=-0.5", "-1 (constant) or at least 0"]),
        ("epsilon_final", 2.0, ["--epsilon_final=2.0", "at most 1"]),
        ("num_ps", 0, ["--num_ps=0", "at least 1 and at most 64"]),
        ("num_workers", 513, ["--num_workers=513", "at least 1 and at most 512"]),
        ("ps_deadline", 0.5, ["--ps_deadline=0.5", "at least 1"]),
        ("gpu_memory_fraction", 1.5, ["--gpu_memory_fraction=1.5", "at least 0 and at most 1"]),
        ("gpus", "all", ["--gpus=all", "auto, none, or indices such as 0,1"]),
        ("gpus", "0,,1", ["--gpus=0,,1", "auto, none, or indices such as 0,1"]),
        ("gpus", "-1", ["--gpus=-1", "auto, none, or indices such as 0,1"]),
        ("gpus", "", ["--gpus=:", "auto, none, or indices such as 0,1"]),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(name, value, words):
    assert_refused(words, lambda: Config(**{name: value}))


BOUNDED = [f for f in dataclasses.fields(Config) if f.metadata["minimum"] is not None]


@pytest.mark.parametrize("field", BOUNDED, ids=lambda field: field.name)
def test_nothing_below_its_minimum_is_taken(field):
    value = field.metadata["minimum"] - (1 if field.type is int else 0.001)
    assert_refused(
        [f"--{field.name}={value}", f"at least {field.metadata['minimum']}"], lambda: Config(**{field.name: value})
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"local_steps": 4, "push_period": 2}, ["--local_steps=4", "--push_period=2", "--local_steps=0"]),
        ({"local_steps": 0, "averages": "shared"}, ["--averages=shared", "--local_steps=0", "at auto"]),
        ({"local_steps": 0, "averages": "own"}, ["--averages=own", "--local_steps=0", "at auto"]),
        ({"local_steps": 4, "pull_period": 3}, ["--local_steps=4", "--pull_period=3", "--local_steps=0"]),
        (
            {"replay_capacity": 100, "num_workers": 2, "envs_per_worker": 8},
            ["--replay_capacity=100", f"leaves {100 // 2 // 8} transitions", "2 workers x 8 environments", f"{3 + 8}"],
        ),
    ],
)
def test_settings_that_do_not_go_together_are_named(settings, words):
    assert_refused(words, lambda: Config(**settings))


def test_the_smallest_replay_that_is_taken():
    fitting = 2 * 8 * (3 + 8)
    assert Config(replay_capacity=fitting, warmup_steps=1, num_workers=2, envs_per_worker=8).replay_capacity == fitting
    with pytest.raises(UserError):
        Config(replay_capacity=fitting - 1, num_workers=2, envs_per_worker=8)


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "stop_at_return": st.one_of(st.just(math.inf), st.floats(-1e6, 1e6)),
            "learning_rate": st.floats(0, 10),
            "total_steps": st.integers(1, 10**12),
            "overlap": st.booleans(),
            "gpus": st.sampled_from(["auto", "none", "0", "0,1", "3, 4"]),
            "optimizer": st.sampled_from(["adam", "rmsprop", "centered_rmsprop"]),
        }
    )
)
def test_json_round_trip(values):
    config = Config(**values)
    text = json.dumps(config.to_dict(), allow_nan=False)
    assert Config.from_dict(json.loads(text)) == config


def test_types_survive_the_round_trip():
    back = Config.from_dict(json.loads(json.dumps(Config(learning_rate=1, stop_at_return=18).to_dict())))
    for field in dataclasses.fields(Config):
        assert type(getattr(back, field.name)) is field.type


def test_infinity_is_written_as_a_word_and_read_back():
    values = Config(stop_at_return=math.inf).to_dict()
    assert values["stop_at_return"] == "inf"
    assert Config.from_dict(values).stop_at_return == math.inf


def test_settings_of_another_version_are_left_out_and_bad_ones_refused():
    assert Config.from_dict({"batch_size": 8, "no_such_setting": 1}) == Config(batch_size=8)
    assert_refused(["--batch_size=0"], lambda: Config.from_dict({"batch_size": 0}))


def test_settings_cannot_be_changed_but_only_replaced():
    config = Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.batch_size = 8  # type: ignore[misc]
    assert dataclasses.replace(config, batch_size=8).batch_size == 8
    assert_refused(["--batch_size=0"], lambda: dataclasses.replace(config, batch_size=0))


def test_every_setting_has_a_help_text_and_a_type_that_flags_know():
    for field in dataclasses.fields(Config):
        assert re.fullmatch(r"\S.*\.", field.metadata["help"]), field.name
        assert field.type in (int, float, bool, str), field.name


def test_a_warm_up_that_replay_cannot_hold_is_refused():
    assert_refused(["--warmup_steps=300000", "--replay_capacity=200000"], lambda: Config(warmup_steps=300_000))


def test_a_digit_that_int_does_not_take_is_refused():
    assert_refused(["--gpus=\u00b2"], lambda: Config(gpus="\u00b2"))


def test_workers_share_what_is_learned_but_not_what_concerns_a_host():
    config = make_config("cartpole", {"env": "CartPole-v1"})
    alike = dataclasses.replace(config, threads=7, gpus="none", lease=3.0, stop_at_return=9.0, envs_per_worker=3)
    assert config.shared_id() == alike.shared_id() == Config.from_dict(config.to_dict()).shared_id()
    different = [{"learning_rate": 0.5}, {"local_steps": 0}, {"total_steps": 7}, {"seed": 1}, {"dueling": True}]
    ids = {dataclasses.replace(config, **change).shared_id() for change in different}
    assert len(ids - {config.shared_id()}) == len(different)
    assert all(0 < one < 2**62 for one in ids)


def test_what_workers_need_not_share_are_settings():
    assert {field.name for field in dataclasses.fields(Config)} >= _OF_ONE_PROCESS
