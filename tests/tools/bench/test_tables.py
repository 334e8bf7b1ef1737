"""Tests of async_dqn.tools.bench.tables, on made-up data."""

import json

import pytest

from async_dqn.tools.bench import tables

LOCAL = "local, 1 ps + 2 workers"
PEER = "Their DQN, 8 environments"
LIMIT = "learner only, 2 processes, float32"


def result(section, name, repetition, values=None, error=None, others=0.0):
    outcome = {"error": error} if error else {"values": values}
    return {"section": section, "name": name, "repetition": repetition, "seconds": 9.0, "others": others} | outcome


def program(name, repetition, rate, **processes):
    values = {"agent steps/s": rate, "minibatches/s": rate / 4} | processes
    return result("programs", name, repetition, values)


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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1234.5, "1,234"),
        (1_234_567, "1,234,567"),
        (123.4, "123"),
        (12.34, "12.3"),
        (1.234, "1.23"),
        (0.12345, "0.123"),
        (0.0012345, "0.00123"),
        (-12.34, "-12.3"),
        (float("nan"), "-"),
        (float("inf"), "-"),
    ],
)
def test_numbers_have_three_digits_that_count(value, text):
    assert tables.number(value) == text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], "-"),
        ([5.0], "5.00"),
        ([5.0, 5.001], "5.00"),
        ([30.0, 10.0, 20.0], "20.0 [10.0 - 30.0]"),
        ([10.0, 20.0], "15.0 [10.0 - 20.0]"),
    ],
)
def test_a_cell_is_the_median_and_the_range(values, text):
    assert tables.cell(values) == text


def test_ratios_are_taken_within_a_repetition():
    # The machine is twice as fast in the second repetition, for both.
    results = [
        program("baseline", 0, 100.0),
        program(LOCAL, 0, 150.0),
        program("baseline", 1, 200.0),
        program(LOCAL, 1, 280.0),
        program("baseline", 2, 100.0),
        result("programs", LOCAL, 2, error="lost"),
    ]
    assert tables.ratios(results, LOCAL, ("programs", "baseline"), "agent steps/s") == [150 / 100, 280 / 200]


def test_a_ratio_to_nothing_is_none():
    results = [program("baseline", 0, 0.0), program(LOCAL, 0, 1.0)]
    assert tables.ratios(results, LOCAL, ("programs", "baseline"), "agent steps/s") == []


def test_ours_are_compared_with_the_baseline_each_peer_and_each_limit():
    results = [
        program("baseline", 0, 200.0),
        program(LOCAL, 0, 300.0),
        program(PEER, 0, 100.0),
        result("limit", LIMIT, 0, {"minibatches/s": 100.0, "agent steps/s": 400.0}),
        result("limit", "a limit of something else", 0, {"MB/s": 1.0}),
        result("learning", "baseline", 0, {"agent steps/s": 1.0}),  # not the program of that name
    ]
    assert tables.ratio_table(results).splitlines() == [
        f"|  | baseline | {LOCAL} |",
        "| --- | ---: | ---: |",
        "| to baseline | - | 1.50 |",
        f"| to {PEER} | 2.00 | 3.00 |",
        f"| to {LIMIT} | {200 / 4 / 100:.3g} | {300 / 4 / 100:.3g} |",
    ]


def test_without_anything_to_compare_with_there_is_no_ratio():
    assert tables.ratio_table([program("baseline", 0, 200.0)]) == ""


def test_processes_have_a_row_each():
    results = [
        program("baseline", 0, 1.0, **{"resident MB: baseline": 500.0, "acting %: baseline": 10.0}),
        program(LOCAL, 0, 1.0, **{"resident MB: ps 0": 300.0, "resident MB: worker 0": 700.0}),
        program(LOCAL, 1, 1.0, **{"resident MB: ps 0": 310.0, "acting %: worker 0": 20.0}),
    ]
    assert tables.process_table(results, lambda metric: metric == "resident MB").splitlines()[2:] == [
        "| baseline | 500 |",
        f"| {LOCAL}: ps 0 | 305 [300 - 310] |",
        f"| {LOCAL}: worker 0 | 700 |",
    ]
    assert tables.process_table(results, lambda metric: metric.endswith(" %")).splitlines() == [
        "|  | acting % |",
        "| --- | ---: |",
        "| baseline | 10.0 |",
        f"| {LOCAL}: worker 0 | 20.0 |",
    ]


def test_programs_share_a_table_whatever_they_tell():
    results = [program("baseline", 0, 1.0, staleness=0.0), program(PEER, 0, 2.0)]
    text, failed = tables.section_blocks(results, "programs")
    assert text.splitlines() == [
        "|  | agent steps/s | minibatches/s | staleness |",
        "| --- | ---: | ---: | ---: |",
        "| baseline | 1.00 | 0.25 | 0 |",
        f"| {PEER} | 2.00 | 0.5 | - |",
    ]
    assert failed == ""


def test_parts_that_tell_other_things_have_tables_of_their_own():
    results = [
        result("parts", "acting", 0, {"ms": 1.0}),
        result("parts", "checkpoint", 0, {"MB/s": 2.0}),
        result("parts", "replay", 0, {"ms": 3.0}),
    ]
    first, second, _ = tables.section_blocks(results, "parts")
    assert first.splitlines()[2:] == ["| acting | 1.00 |", "| replay | 3.00 |"]
    assert second.splitlines()[2:] == ["| checkpoint | 2.00 |"]


def test_a_share_of_the_repetitions_is_a_mean():
    results = [
        result("learning", "a", index, {"steps": index, "% of seeds": 100.0 * (index > 0)}) for index in range(4)
    ]
    text, _ = tables.section_blocks(results, "learning")
    assert text.splitlines()[-1] == "| a | 1.50 [0 - 3.00] | 75.0 |"


def test_failures_are_told_with_their_reason_and_the_rest_is_shown():
    results = [
        program("baseline", 0, 1.0),
        result("programs", "baseline", 1, error="ended by itself"),
        result("programs", LOCAL, 0, error="no port"),
        result("programs", LOCAL, 1, error="no port"),
    ]
    text, failed = tables.section_blocks(results, "programs")
    assert text.splitlines()[2:] == ["| baseline | 1.00 | 0.25 |"]
    assert failed.splitlines() == [
        "- **failed** (1 of 2): baseline: ended by itself",
        f"- **failed** (2 of 2): {LOCAL}: no port",
    ]


def test_the_report_survives_json():
    made = data([program("baseline", 0, 1.0), result("parts", "acting", 0, {"ms": 1.0})])
    text = tables.report(made)
    assert tables.report(json.loads(json.dumps(made))) == text
    assert "## Whole programs" in text and "## Parts" in text
    assert "`async-dqn bench`, 2026-11-21" in text and "A CPU (avx2), 2 cores" in text
    assert "tensorflow -" in text and "revision unknown" in text
    assert "Warning" not in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"busy": ["load average 3.0 when it began"]}, "the machine was busy: load average 3.0 when it began"),
        ({"interrupted": True}, "interrupted after 2 of 9 measurements"),
        (
            {
                "results": [
                    result("parts", name, 0, {"ms": 1}, others=n) for name, n in (("a", 0.1), ("b", 1.25), ("b", 2))
                ]
            },
            "other processes took cores meanwhile, of b: 2.00.",
        ),
        (
            {"plan": {"work": "nature", "seconds": 8, "repetitions": 1, "measurements": 2}},
            "one repetition says nothing",
        ),
    ],
)
def test_the_report_warns_of_what_makes_figures_worth_less(changes, words):
    made = data([program("baseline", 0, 1.0), program(LOCAL, 0, 1.0)]) | changes
    assert words in tables.report(made)


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        (["programs", "parts"], "work nature; repetitions: 3, all cases in turn; windows of 30 s"),
        (["parts", "limit"], "work nature; repetitions: 3, all cases in turn"),
        (["learning"], "repetitions: 3, all cases in turn"),
        ([], "work nature"),
    ],
)
def test_the_report_says_what_of_the_plan_was_used(sections, line):
    text = tables.report(data([result(section, "a", 0, {"ms": 1.0}) for section in sections]))
    assert f"\n- {line}\n" in text


def test_the_report_names_the_work_of_a_soak_beside_the_learning():
    made = data([result("learning", "a", 0, {"ms": 1.0})]) | {"soak": {"verdict": "steady"}}
    assert "\n- work nature; repetitions: 3, all cases in turn\n" in tables.report(made)


def test_the_report_of_nothing_has_no_empty_tables():
    text = tables.report(data([result("programs", "baseline", 0, error="no port")]))
    assert "failed" in text
    assert "|" not in text and "Ratios" not in text


def test_a_peer_s_versions_are_told():
    made = data([])
    made["origin"]["peers"] = {"Their DQN": {"torch": "2.13.0"}}
    assert "- Their DQN: torch 2.13.0" in tables.report(made)


def test_a_soak_is_shown_as_far_as_it_is_plain():
    text = tables.report(data([], soak={"minutes": 60.0, "leaks": False, "why": "none", "rows": [1, 2]}))
    for line in ("| minutes | 60.0 |", "| leaks | False |", "| why | none |"):
        assert line in text
    assert "rows" not in text


def test_a_name_cannot_break_a_table():
    assert tables.table(["", "x"], [["a|b", "1"]]).splitlines()[-1] == "| a/b | 1 |"
