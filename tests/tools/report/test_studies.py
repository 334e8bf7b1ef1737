"""Studies: each of their runs has settings that the program accepts, and the report on them."""

import dataclasses
import json
import math
import sys

import numpy as np
import pytest
from report_helpers import write_run

from async_dqn.agents import table
from async_dqn.cli import main as command_line
from async_dqn.tools.report import compare, findings, studies
from async_dqn.tools.report.runs import read_run


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("study, env", [(study, env) for study, envs in studies.STUDIES.items() for env in envs])
def test_every_run_of_a_study_has_settings_that_go_together(study, env, quick):
    kinds = studies.kinds(study, env, quick=quick, given={"threads": 1})
    goal = {"CartPole-v1": 195, "LunarLander-v3": 200}[env]
    assert len({kind.name for kind in kinds}) == len(kinds) > 1
    for (name, _, config), (*_, agent, settings) in zip(kinds, studies.STUDIES[study][env](quick), strict=True):
        assert (config.threads, config.env, config.stop_at_return) == (1, env, goal), name
        assert config.agent == agent
        for setting, value in settings.items():
            assert getattr(config, setting) == value


def test_on_lunarlander_a_study_has_fewer_kinds_with_the_presets_for_it():
    sharing = studies.kinds("sharing", "LunarLander-v3", quick=False, given={})
    assert [kind.name for kind in sharing] == ["one process", "async, 4 local steps", "hogwild", "global replay"]
    assert {kind.config.total_steps for kind in sharing} == {300_000}
    workers = studies.kinds("workers", "LunarLander-v3", quick=False, given={})
    agents = [(kind.config.agent, kind.config.num_workers) for kind in workers]
    assert agents == [(agent, number) for agent in ("dqn", "a3c", "dyna_q") for number in (1, 2, 4)]


def test_the_study_of_algorithms_has_all_of_the_table():
    assert [kind.name for kind in studies.kinds("algorithms", quick=False, given={})] == list(table.TABLE)


def test_the_study_of_parallelism_sends_gradients_or_rollouts():
    found = {kind.name: kind.config for kind in studies.kinds("parallelism", quick=False, given={})}
    sent = {
        name: (config.num_workers, config.parallelism, config.separates and config.vtrace)
        for name, config in found.items()
    }
    assert sent == {
        "gradient, 1": (1, "gradient", False),
        "gradient, 2": (2, "gradient", False),
        "gradient, 4": (4, "gradient", False),
        "data, 2": (2, "data", False),
        "data, 4": (4, "data", False),
        "data, V-trace, 2": (2, "data", True),
        "data, V-trace, 4": (4, "data", True),
    }


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--study=nothing"], "--study=nothing: must be one of algorithms, sharing, workers, parallelism, planning"),
        (["--study=sharing", "--agent=ppo"], "--agent: a study sets it itself"),
        (["--study=sharing", "--learning_rate=0.1"], "--learning_rate: a study sets it itself"),
        (["--study=workers", "--worker_counts=3"], "--worker_counts: a study sets it itself"),
        (["--study=workers", "--env=pong"], "--env=pong: --study=workers is trained on CartPole-v1 or LunarLander-v3"),
        (["--study=planning", "--env=LunarLander-v3"], "--study=planning is trained on CartPole-v1"),
    ],
)
def test_what_makes_no_sense_is_refused(flags, message, capsys):
    assert command_line.main(["compare", *flags]) == 2
    assert message in capsys.readouterr().err


def test_an_environment_whose_package_is_missing_is_refused_before_anything_starts(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "Box2D", None)
    monkeypatch.delitem(sys.modules, "gymnasium.envs.box2d", raising=False)
    monkeypatch.delitem(sys.modules, "gymnasium.envs.box2d.lunar_lander", raising=False)
    flags = ["--study=sharing", "--env=LunarLander-v3", f"--logdir={tmp_path / 'study'}"]
    assert command_line.main(["compare", *flags]) == 2
    assert "gymnasium[box2d]" in capsys.readouterr().err
    assert not (tmp_path / "study").exists()


def test_the_command_line_makes_its_trials(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(compare, "run_compare", lambda comparison, stop, progress: asked.append(comparison) or 0)
    flags = ["--study=algorithms", "--seeds=2", "--seed=4", "--threads=1", f"--logdir={tmp_path}"]
    assert command_line.main(["compare", *flags]) == 0
    trials = asked[0].trials()
    assert len(trials) == 2 * len(table.TABLE)
    assert (trials[0].label, trials[0].job, trials[0].config.seed, trials[-1].config.seed) == ("dqn", "baseline", 4, 5)
    assert asked[0].games == 0


def runs_of(tmp_path, seconds):
    """Runs with labels on two cores, {(label, seed): seconds to the goal}."""
    for (label, seed), solved_at in seconds.items():
        summary = {
            "env_steps": 1_000,
            "episodes": 50,
            "wall_seconds": solved_at,
            "solved_at_seconds": solved_at,
            "solved_at_steps": None if math.isnan(solved_at) else 1_000,
            "data_age_mean": 1.5,
        }
        path, host = tmp_path / f"{label}-{seed}".replace(" ", "-"), {"host": {"cores": 2}}
        write_run(path, [1.0], seed=seed, exit_reason="solved", summary=summary, described=host)
        yield dataclasses.replace(read_run(path), label=label)


def results_of(tmp_path, seconds):
    """What results.json has of such runs."""
    return json.loads(json.dumps([findings.result(run) for run in runs_of(tmp_path, seconds)]))


def test_more_workers_are_drawn_by_their_medians_and_those_that_never_arrived_are_not(tmp_path):
    seconds = {("a on ps, 1", 0): 40.0, ("a on ps, 1", 1): 60.0, ("a on ps, 2", 0): 25.0, ("b on ps, 1", 0): math.nan}
    figures = studies.figures("workers", results_of(tmp_path, seconds))
    lines = [{line.get_label(): line for line in axes.get_lines()} for axes in figures["workers"].axes]
    games, times, each, speed_ups = ([of[name] for name in ("a on ps", "b on ps")] for of in lines)
    np.testing.assert_array_equal(times[0].get_ydata(), [50, 25])
    np.testing.assert_array_equal(speed_ups[0].get_ydata(), [1, 2])
    np.testing.assert_array_equal(games[0].get_ydata(), [50, 50])
    np.testing.assert_array_equal(each[0].get_ydata(), [1, 0.5])
    assert np.isnan(times[1].get_ydata()).all()
    assert list(figures) == ["workers"]
    assert [[text.get_text() for text in axes.texts] for axes in figures["workers"].axes] == [["0 of 1"]] * 2 + [[]] * 2


def test_the_study_of_workers_has_dqn_with_each_number_of_local_steps_once():
    found = [kind.config for kind in studies.kinds("workers", quick=False, given={}) if kind.config.agent == "dqn"]
    pairs = [(config.local_steps, config.num_workers) for config in found if config.store == "ps"]
    assert sorted(pairs) == [(steps, number) for steps in (0, 1, 4, 16) for number in (1, 2, 4, 8)]


def test_how_often_dqn_synchronises_has_a_picture_of_its_own_with_what_the_preset_does(tmp_path):
    names = ["dqn on ps", "ppo on ps", "ppo on shared memory"]
    local_steps = {("dqn on ps", 1): 4, ("dqn on ps", 4): 1, ("dqn on ps, 1 local steps", 1): 1}
    local_steps |= {("dqn on ps, 4 local steps", 4): 4, ("dqn on ps, 16 local steps", 1): 16}
    local_steps |= {(kind, number): 0 for kind in ("ppo on ps", "ppo on shared_memory") for number in (1, 4)}
    kinds = {f"{kind}, {number}": steps for (kind, number), steps in local_steps.items()}
    runs = results_of(tmp_path, {(kind, 0): 40.0 + steps for kind, steps in kinds.items()})
    figures = studies.figures("workers", [run | {"local_steps": kinds[run["kind"]]} for run in runs])
    legends = {name: [text.get_text() for text in figure.legends[0].get_texts()] for name, figure in figures.items()}
    steps = ["1 local steps", "4 local steps", "16 local steps"]
    assert legends == {"workers": [*names, "cores", "ideal"], "local-steps": [*steps, "cores", "ideal"]}
    times = {line.get_label(): list(line.get_ydata()) for line in figures["local-steps"].axes[1].get_lines()}
    assert [times[label] for label in steps] == [[41, 41], [44, 44], [56]]
    lines = {line.get_label(): line for line in figures["workers"].axes[0].get_lines()}
    looks = [(lines[name].get_color(), lines[name].get_linestyle()) for name in names]
    assert looks[1][0] == looks[2][0] != looks[0][0] and looks[1][1] != looks[2][1]


def test_planning_is_drawn_over_the_ratio_and_no_line_leads_to_one_that_missed_the_goal_once(tmp_path):
    seconds = {("0 simulated", 0): 40.0, ("16 simulated", 0): math.nan, ("4 simulated", 1): 5.0}
    runs = results_of(tmp_path, seconds | {("4 simulated", 0): 9.0, ("4 simulated, novelty", 0): 1.0})
    returns, steps = studies.figures("planning", runs)["planning"].axes
    assert [label.get_text() for label in steps.get_xticklabels()] == ["0", "4", "16"]
    assert [len(line.get_ydata()) for line in steps.get_lines()] == [1, 2, 1, 3]
    np.testing.assert_array_equal(steps.get_lines()[-1].get_ydata(), [1_000, 1_000, np.nan])
    assert [text.get_text() for text in steps.texts] == ["0 of 1"] and not returns.texts


def test_a_report_on_a_study_has_a_row_for_each_kind(tmp_path):
    seconds = {("dqn on ps, 1", 0): 40.0, ("ppo on ps, 1", 0): 20.0}
    runs = list(runs_of(tmp_path / "runs", seconds))
    findings.write_report(runs, [], tmp_path, num_planned=2, study="workers")
    text = (tmp_path / "report.md").read_text()
    assert "# workers on " in text
    assert "| dqn on ps, 1 |" in text and "| ppo on ps, 1 |" in text
    found = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert [(one["kind"], one["minutes to the goal"], one["mean age of data"]) for one in found] == [
        ("dqn on ps, 1", pytest.approx(40 / 60), 1.5),
        ("ppo on ps, 1", pytest.approx(20 / 60), 1.5),
    ]
    assert (tmp_path / "figures" / "workers.png").stat().st_size > 10_000
