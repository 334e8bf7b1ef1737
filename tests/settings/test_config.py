"""Settings: what is refused, presets, and the way through JSON; for every agent of the table."""

import dataclasses
import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_dqn.agents import table
from async_dqn.agents.dqn import DQNConfig
from async_dqn.agents.table import config_from_dict, find, make_config
from async_dqn.base.errors import UserError
from async_dqn.envs import registry
from async_dqn.run import preflight
from async_dqn.settings.config import ALONE, Config
from async_dqn.settings.fields import type_of

EVERY_AGENT = pytest.mark.parametrize("agent", table.TABLE)
PRESETS = [(agent, preset) for agent in table.TABLE for preset in find(agent).presets]


def assert_refused(words, make):
    """`make` ends with a UserError of one line that has all words in it."""
    with pytest.raises(UserError) as raised:
        make()
    message = str(raised.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(("agent", "preset"), PRESETS)
def test_every_preset_is_valid_and_changes_what_it_names(agent, preset):
    cls = find(agent)
    for num_workers in (1, 2):
        config = make_config(agent, preset, {"num_workers": num_workers})
        assert type(config) is cls.Config
        named = {"agent": agent, **cls.preset(preset, num_workers)}
        assert {name: getattr(config, name) for name in named} == named
    assert cls.preset(preset, 1) == cls.presets[preset]


@EVERY_AGENT
@pytest.mark.parametrize("env", ["pong", "breakout", "CartPole-v1"])
def test_every_agent_has_a_preset_for_every_kind_of_environment(agent, env):
    spec = registry.resolve(env, "classic")
    network = make_config(agent, find(agent).default_preset(spec), {}).network
    assert network in ("auto", *preflight.fitting_networks(spec.picture_shape))


@pytest.mark.parametrize("agent", ["dqn", "fast_dqn", "c51", "rainbow", "dyna_q", "a3c", "paac", "ppo"])
def test_lunar_lander_has_a_preset_of_its_own(agent):
    spec = registry.resolve("CartPole-v1", "classic")  # the other needs a package
    assert find(agent).default_preset(spec) == "cartpole"
    assert find(agent).default_preset(dataclasses.replace(spec, id="LunarLander-v3")) == "lunarlander"


@pytest.mark.parametrize(
    ("setting", "paper"),
    [
        ("network", "nature"),
        ("double", False),
        ("center_frames", False),
        ("n_step", 1),
        ("batch_size", 32),
        ("discount", 0.99),
        ("replay_capacity", 1_000_000),
        ("epsilon_start", 1.0),
        ("epsilon_final", 0.1),
        ("optimizer", "centered_rmsprop"),
        ("learning_rate", 0.00025),
        ("rmsprop_decay", 0.95),
        ("optimizer_epsilon", 0.01 / 32**2),  # of a mean over the minibatch; the paper's 0.01 is of a sum
        ("clip_rewards", True),
    ],
)
def test_the_nature_preset_is_that_of_the_paper(setting, paper):
    assert getattr(make_config("dqn", "nature", {}), setting) == paper


def test_the_nature_preset_has_the_frame_counts_of_deepmind_s_code():
    config = make_config("dqn", "nature", {})
    frames = registry.resolve("pong", config.protocol).frame_skip
    assert frames == 4
    assert config.train_period * frames == 16  # from one minibatch to the next
    assert config.target_period * config.train_period * frames == 40_000
    assert config.epsilon_steps * frames == 4_000_000
    assert config.warmup_steps * frames == 200_000
    assert config.total_steps * frames == 200_000_000


def test_single_settings_override_the_preset():
    config = make_config("dqn", "cartpole", {"batch_size": 7})
    assert (config.batch_size, config.network) == (7, "auto")


@pytest.mark.parametrize(
    ("num_workers", "local_steps", "averages"),
    [(1, 4, "own"), (2, 4, "own"), (3, 1, "shared"), (100, 1, "shared")],
)
def test_with_more_than_two_workers_a_preset_has_one_local_step_and_shared_averages(num_workers, local_steps, averages):
    config = make_config("dqn", "pong-fast", {"num_workers": num_workers})
    assert (config.local_steps, config.averages) == (local_steps, averages)


@pytest.mark.parametrize(
    ("agent", "given", "local_steps", "averages"),
    [
        ("dqn", {"local_steps": 16}, 16, "shared"),
        ("dqn", {"averages": "own"}, 1, "own"),
        ("dqn", {"local_steps": 0}, 0, "own"),
        ("dqn", {"store": "shared_memory"}, 0, "own"),
        ("dqn", {"replay": "global"}, 4, "own"),  # one worker learns
        ("dyna_q", {"num_workers": 2}, 4, "own"),
        ("dyna_q", {}, 4, "own"),  # worker 0 alone learns
        ("dyna_q", {"planning": "own"}, 1, "shared"),
    ],
)
def test_what_was_given_stays_and_one_learner_has_the_preset_of_two_workers(agent, given, local_steps, averages):
    config = make_config(agent, "cartpole", {"num_workers": 8, **given})
    assert (config.local_steps, config.averages) == (local_steps, averages)


@pytest.mark.parametrize(("name", "hint"), [("natur", ["nature?"]), ("xyz", [])])
def test_an_unknown_preset_is_named_with_those_that_the_agent_has(name, hint):
    assert_refused(
        [f"--preset={name}", "--agent=dqn", *hint, *find("dqn").presets], lambda: make_config("dqn", name, {})
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dqnn", ["dqn?", *table.TABLE]),
        ("xyz", [*table.TABLE]),
        ("no.such.module:NAME", ["no.such.module"]),
        ("async_dqn.agents.dqn:Nothing", ["async_dqn.agents.dqn", "Nothing"]),
        ("async_dqn.agents.dqn:DQNConfig", ["DQNConfig"]),
    ],
)
def test_an_agent_that_there_is_not_is_named(name, words):
    assert_refused([f"--agent={name}", *words], lambda: find(name))


def test_an_agent_of_one_s_own_is_found_by_its_module():
    config = make_config("async_dqn.agents.ppo:PPO", "cartpole", {})
    assert config_from_dict(config.to_dict()) == config
    assert find(config.agent) is find("ppo")


def test_the_owners_of_a_flag_are_the_agents_that_have_it():
    assert table.owners("seed") == [*table.TABLE]
    assert "dqn" in table.owners("target_period") and "ppo" not in table.owners("target_period")
    assert table.owners("no_such_flag") == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("network", "resnet", ["nature", "nips", "mlp"]),
        ("protocol", "classical", ["classic?", "machado"]),
        ("optimizer", "sgd", ["adam", "rmsprop"]),
        ("averages", "auto", ["own", "shared"]),
        ("seed", 2**31, ["at most 2147483647"]),
        ("envs_per_worker", 1025, ["1 ", "1024"]),
        ("discount", 1.01, ["0 ", "1"]),
        ("discount", math.nan, []),
        ("stop_at_return", math.nan, []),
        ("learning_rate", math.inf, []),
        ("reward_scale", -math.inf, []),
        ("max_staleness", 10**19, ["at most 1000000000000"]),
        ("threads", 10**10, ["at most 1024"]),
        ("final_learning_rate", -0.5, ["-1", "0"]),
        ("gpu_memory_fraction", 1.5, ["1"]),
        ("gpus", "all", ["auto", "none", "0,1"]),
        ("gpus", "0,,1", ["auto", "none", "0,1"]),
        ("gpus", "-1", ["auto", "none", "0,1"]),
        ("gpus", "", ["auto", "none", "0,1"]),
        ("gpus", "\u00b2", []),  # a digit, but not to `int`
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(name, value, words):
    assert_refused([f"--{name}={value}", *words], lambda: Config(**{name: value}))


def bounds():
    for agent in table.TABLE:
        for field in dataclasses.fields(find(agent).Config):
            for bound, sign in (("minimum", -1), ("maximum", 1)):
                if (limit := field.metadata[bound]) is not None:
                    yield pytest.param(agent, field, limit + sign, id=f"{agent}-{field.name}-{bound}")


@pytest.mark.parametrize(("agent", "field", "value"), [*bounds()])
def test_nothing_beyond_its_bounds_is_taken(agent, field, value):
    assert_refused([f"--{field.name}={value}"], lambda: find(agent).Config(**{field.name: value}))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"local_steps": 0, "averages": "shared"}, ["--averages=shared", "--local_steps=0"]),
        (
            {"replay_capacity": 100, "num_workers": 2, "envs_per_worker": 8},
            ["--replay_capacity=100", f" {100 // 2 // 8} ", "2 workers", "8 environments", f"{3 + 8}"],
        ),
        ({"warmup_steps": 300_000}, ["--warmup_steps=300000", "--replay_capacity=200000"]),
    ],
)
def test_settings_that_do_not_go_together_are_named(settings, words):
    assert_refused(words, lambda: DQNConfig(**settings))


def test_the_smallest_replay_that_is_taken():
    settings = {"warmup_steps": 1, "num_workers": 2, "envs_per_worker": 8}
    fitting = 2 * 8 * (3 + 8)
    assert DQNConfig(replay_capacity=fitting, **settings).replay_capacity == fitting
    with pytest.raises(UserError):
        DQNConfig(replay_capacity=fitting - 1, **settings)


@settings(deadline=None)
@given(
    st.sampled_from([*table.TABLE]),
    st.fixed_dictionaries(
        {
            "stop_at_return": st.one_of(st.just(math.inf), st.floats(-1e6, 1e6)),
            "learning_rate": st.floats(0, 10),
            "total_steps": st.integers(1, 10**12),
            "overlap": st.booleans(),
            "gpus": st.sampled_from(["auto", "none", "0", "0,1", "3, 4"]),
            "optimizer": st.sampled_from(["adam", "rmsprop", "centered_rmsprop"]),
        }
    ),
)
def test_json_round_trip(agent, values):
    is_sync = {"overlap": False} if agent == "paac" else {}  # which waits for each update
    config = make_config(agent, "cartpole", ALONE | values | is_sync)
    back = config_from_dict(json.loads(json.dumps(config.to_dict(), allow_nan=False)))
    assert back == config
    assert type(back) is find(agent).Config
    for field in dataclasses.fields(back):
        assert type(getattr(back, field.name)) is type_of(field)


def test_whole_numbers_of_json_become_fractions_where_the_setting_is_one():
    back = Config.from_dict(json.loads('{"learning_rate": 1, "stop_at_return": "inf"}'))
    assert (back.learning_rate, back.stop_at_return) == (1.0, math.inf)
    assert type(back.learning_rate) is float


def test_settings_of_another_version_are_left_out_and_bad_ones_refused():
    assert DQNConfig.from_dict({"batch_size": 8, "no_such_setting": 1}) == DQNConfig(batch_size=8)
    assert_refused(["--batch_size=0"], lambda: DQNConfig.from_dict({"batch_size": 0}))
    for bad in ("8", 8.0, True, None):
        assert_refused(
            [f"--batch_size={bad}", type(bad).__name__], lambda bad=bad: DQNConfig.from_dict({"batch_size": bad})
        )


def test_settings_cannot_be_changed_but_only_replaced():
    config = Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 8  # type: ignore[misc]
    assert dataclasses.replace(config, seed=8).seed == 8
    assert_refused(["--seed=-1"], lambda: dataclasses.replace(config, seed=-1))


@EVERY_AGENT
def test_every_setting_has_a_help_text_and_a_type_that_flags_know(agent):
    for field in dataclasses.fields(find(agent).Config):
        assert re.fullmatch(r"\S.*\.", field.metadata["help"], re.DOTALL), field.name
        assert type_of(field) in (int, float, bool, str), field.name
        assert type(field.default) is type_of(field), field.name


@EVERY_AGENT
def test_workers_share_what_is_learned_but_not_what_concerns_a_host(agent):
    config = make_config(agent, "cartpole", {})
    assert config.shared_id() == config_from_dict(config.to_dict()).shared_id()
    not_shared = {field.name for field in dataclasses.fields(config) if not field.metadata["shared"]}
    assert not_shared >= {"threads", "gpus", "lease", "stop_at_return", "envs_per_worker", "log_period"}
    assert not_shared.isdisjoint({"learning_rate", "local_steps", "total_steps", "seed", "discount"})
    changed = {"threads": 7, "gpus": "none", "lease": 3.0, "stop_at_return": 9.0, "log_period": 9.0}
    assert dataclasses.replace(config, **changed).shared_id() == config.shared_id()
    changes = [{"learning_rate": 0.5}, {"max_nonfinite": 1}, {"total_steps": 7}, {"seed": 1}, {"discount": 0.5}]
    ids = {config.shared_id(), *(dataclasses.replace(config, **change).shared_id() for change in changes)}
    assert len(ids) == 1 + len(changes)
    assert all(0 < one < 2**62 for one in ids)


@pytest.mark.parametrize(
    ("agent", "chosen", "is_shared"),
    [
        ("dqn", {}, False),
        ("dqn", {"replay": "global"}, True),
        ("dqn", {"exploration": "ape_x"}, True),
        ("a3c", {"parallelism": "data"}, True),
        ("dyna_q", {}, True),
        ("dyna_q", {"planning": "own"}, False),
    ],
)
def test_who_learns_from_steps_of_others_needs_as_many_environments_as_they_have(agent, chosen, is_shared):
    config = make_config(agent, "cartpole", chosen | {"num_workers": 2})
    other = dataclasses.replace(config, envs_per_worker=config.envs_per_worker * 2)
    assert (config.shared_id() != other.shared_id()) == is_shared


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("total_steps", "5", "int"),
        ("total_steps", 1e5, "int"),
        ("seed", True, "int"),
        ("learning_rate", "0.1", "float"),
        ("center_frames", "no", "bool"),
        ("center_frames", 1, "bool"),
        ("env", 5, "str"),
    ],
)
def test_a_value_of_another_type_is_named(name, value, wanted):
    with pytest.raises(UserError, match=f"--{name}={value}: .*{wanted}"):
        Config(**{name: value})


def test_a_whole_number_is_a_number():
    assert Config(learning_rate=1).learning_rate == 1
