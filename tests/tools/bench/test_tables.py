"""Tables from made-up numbers."""

import json

import pytest

from async_dqn.tools.bench import tables

LOCAL = "local, 1 ps + 2 workers"
PEER = "Their DQN, 8 environments"
LIMIT = "learner only, 2 processes, float32"


def result(section, name, repetition, values=None, error=None):
    outcome = {"error": error} if error else {"values": values}
    return {"section": section, "name": name, "repetition": repetition, "seconds": 9.0} | outcome


def program(name, repetition, rate, **more):
    return result("programs", name, repetition, {"agent steps/s": rate, "minibatches/s": rate / 4} | more)


def data(results, **more):
    origin = {
        "date": "2026-11-21",
        "command": "async-dqn bench",
        "git revision": None,
        "versions": {"python": "3.11", "tensorflow": None},
        "system": "Linux",
        "cpu": "A CPU",
        "cpu flags": ["avx2"],
        "cores": 2,
        "memory GB": 16.0,
    }
    plan = {"work": "nature", "seconds": 30.0, "repetitions": 3, "measurements": 9}
    return {"origin": origin, "busy": [], "plan": plan, "results": results} | more


def test_ratios_are_taken_within_a_repetition():
    # The machine is twice as fast in the second repetition, for both.
    upper = {"steps": {0: 150.0, 1: 280.0, 3: 1.0}}
    lower = {"steps": {0: 100.0, 1: 200.0, 2: 100.0, 3: 0.0}}
    assert tables.ratios(upper, lower, "steps") == {0: 150 / 100, 1: 280 / 200}
    assert tables.ratios(upper, {}, "steps") == {}


def test_ours_are_compared_with_the_baseline_each_peer_and_each_limit():
    results = [
        program("baseline", 0, 200.0),
        program(LOCAL, 0, 300.0),
        program(PEER, 0, 100.0),
        result("limit", LIMIT, 0, {"minibatches/s": 100.0, "agent steps/s": 400.0}),
        result("scale", "baseline", 0, {"agent steps/s": 1.0}),  # not the program of that name
    ]
    assert tables.ratio_rows(tables.collect(results, "programs"), tables.collect(results, "limit")) == {
        "to baseline": {"baseline": {}, LOCAL: {0: 300 / 200}},
        f"to {PEER}": {"baseline": {0: 200 / 100}, LOCAL: {0: 300 / 100}},
        f"to {LIMIT}": {"baseline": {0: 200 / 4 / 100}, LOCAL: {0: 300 / 4 / 100}},
    }


def busy(result, share=0.4):
    return result | {"others": share}


def test_no_ratio_is_made_of_what_a_busy_machine_measured():
    calm = [program("baseline", 0, 200.0), program(LOCAL, 0, 300.0), busy(program(PEER, 0, 100.0), tables.MAX_OTHERS)]
    text = tables.ratio_table([*calm, program("baseline", 1, 1.0), busy(program(LOCAL, 1, 999.0))])
    assert "| to baseline | - | 1.5 |" in text and f"| to {PEER} | 2 | 3 |" in text
    text = tables.report(data([*calm[:2], busy(program(PEER, 0, 5.0))]))
    assert "| to baseline | - | 1.5 |" in text and "up to 40% of the cores during 1 of 3 measurements" in text
    assert f"| to {PEER} | machine was busy | machine was busy |" in text


def test_processes_have_a_row_each():
    results = [
        program("baseline", 0, 1.0, **{"resident MB: baseline": 500.0, "acting %: baseline": 10.0}),
        program(LOCAL, 0, 1.0, **{"resident MB: ps 0": 300.0, "resident MB: worker 0": 700.0}),
        program(LOCAL, 1, 1.0, **{"resident MB: ps 0": 310.0, "acting %: worker 0": 20.0}),
    ]
    programs = tables.collect(results, "programs")
    assert tables.process_rows(programs, "") == {
        "baseline": {"resident MB": {0: 500.0}},
        f"{LOCAL}: ps 0": {"resident MB": {0: 300.0, 1: 310.0}},
        f"{LOCAL}: worker 0": {"resident MB": {0: 700.0}},
    }
    assert tables.process_rows(programs, " %") == {
        "baseline": {"acting %": {0: 10.0}},
        f"{LOCAL}: worker 0": {"acting %": {1: 20.0}},
    }


def test_programs_share_a_table_whatever_they_tell():
    rows = tables.collect([program("baseline", 0, 1.0, staleness=0.0), program(PEER, 0, 2.0)], "programs")
    (text,) = tables.section_tables(rows, one_table=True)
    assert text.splitlines() == [
        "|  | agent steps/s | minibatches/s | staleness |",
        "| --- | ---: | ---: | ---: |",
        "| baseline | 1 | 0.25 | 0 |",
        f"| {PEER} | 2 | 0.5 | - |",
    ]


def test_parts_that_tell_other_things_have_tables_of_their_own():
    rows = {"a": {"ms": {0: 1.0}}, "b": {"MB/s": {0: 2.0}}, "c": {"ms": {0: 3.0}, "ms: one process": {0: 9.0}}}
    first, second = tables.section_tables(rows, one_table=False)
    assert first.splitlines()[2:] == ["| a | 1 |", "| c | 3 |"]
    assert second.splitlines()[2:] == ["| b | 2 |"]


def test_a_failure_is_told_with_its_reason_beside_what_was_measured():
    text = tables.report(data([program("baseline", 0, 1.0), result("programs", LOCAL, 0, error="no port")]))
    assert "| baseline | 1 |" in text
    assert any("failed" in line and LOCAL in line and "no port" in line for line in text.splitlines())


def test_the_report_survives_json_and_names_machine_command_and_versions():
    made = data([program("baseline", 0, 1.0), result("parts", "acting", 0, {"ms": 1.0})])
    made["origin"] |= {"peers": {"Their DQN": {"torch": "2.13.0"}}, "cpu model": "family 26, model 2, stepping 1"}
    made["plan"]["settings"] = {"compute_dtype": "bfloat16"}
    text = tables.report(made)
    assert tables.report(json.loads(json.dumps(made))) == text
    for words in ("async-dqn bench", "2026-11-21", "A CPU", "stepping 1; avx2", "2 cores", "python 3.11"):
        assert words in text
    assert "torch 2.13.0; it computes in float32" in text and "our programs compute in bfloat16" in text
    assert "Warning" not in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"busy": ["load average 3.0 when it began"]}, "load average 3.0"),
        ({"interrupted": True}, "interrupted after 2 of 9"),
        ({"plan": {"work": "nature", "seconds": 8, "repetitions": 1, "measurements": 2}}, "one repetition"),
    ],
)
def test_the_report_warns_of_what_makes_figures_worth_less(changes, words):
    (line,) = (
        line
        for line in tables.report(data([program("baseline", 0, 1.0)] * 2) | changes).splitlines()
        if "Warning" in line
    )
    assert words in line


@pytest.mark.parametrize(
    ("sections", "windows"),
    [(["programs", "parts"], True), (["sharing"], True), (["parts", "limit"], False)],
)
def test_the_report_says_what_of_the_plan_was_used(sections, windows):
    text = tables.report(data([result(section, "a", 0, {"ms": 1.0}) for section in sections]))
    assert "work nature" in text
    assert ("windows of 30 s" in text) == windows


def test_a_soak_is_shown_as_far_as_it_is_plain():
    text = tables.report(data([], soak={"minutes": 60.0, "verdict": "steady", "growth": [1, 2]}))
    assert "| minutes | 60 |" in text and "| verdict | steady |" in text
    assert "growth" not in text and "work nature" in text
