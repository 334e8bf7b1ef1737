"""Makes the tables of the pages of the code and of the files in results/: `python tests/readme_tables.py`.

In a page, a table that is made stands between `<!-- table: KIND ARGUMENTS -->` and `<!-- end -->`.
"""

import csv
import dataclasses
import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from async_dqn.settings import config

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
DOCS = ["algorithms", "concepts", "extending", "performance", "running"]
PAGES = [ROOT / "README.md", RESULTS / "README.md", *(ROOT / "docs" / f"{name}.md" for name in DOCS)]
MADE = re.compile(r"(<!-- table: ([^>]+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
CLUSTER, ALONE = "local, 1 ps + 2 workers", "baseline"
LEARNER = "learner only, 2 processes, {}"


def read(path: str) -> dict[str, Any]:
    return json.loads((RESULTS / path).read_text())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|---" + "|---:" * (len(head) - 1) + "|", *lines])


def number(value: float) -> str:
    """Three digits, or all of a whole number."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:#.3g}"


def spread(values: Sequence[float]) -> str:
    """The median, and between which limits all lie."""
    middle = number(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} [{number(min(values))} - {number(max(values))}]"


def made_by(command: str, date: str, cpu: str, versions: dict[str, str], revision: str = "", cores: int = 2) -> str:
    command = re.sub(r" --(logdir|output|progress|games)=\S+", "", command)  # which change nothing of what is measured
    word = "revisions" if ", " in revision else "revision"
    found = f"async-dqn {versions['async-dqn'] or ''}".rstrip() + (f", {word} {revision}" if revision else "")
    return f"\n\nMade by `{command}`, {date[:10]}; {cpu}, {cores} cores; TensorFlow {versions['tensorflow']}, {found}."


def short(revision: str) -> str:
    """A commit's first seven digits, and whether there were changes on top of it."""
    return revision[:7] + revision[40:]


def bench_origin(name: str, cores: int = 2) -> str:
    origin = read(f"{name}/bench.json")["origin"]
    assert origin["cores"] == cores
    types = [flag for flag in ("avx512f", "avx512_bf16", "amx_bf16") if flag in origin["cpu flags"]]
    cpu = f"{origin['cpu']} ({', '.join(types) or 'avx2'})"
    return made_by(origin["command"], origin["date"], cpu, origin["versions"], short(origin["git revision"]), cores)


def bench_values(name: str) -> dict[str, list[dict[str, float]]]:
    """Of each case the values of every repetition."""
    found: dict[str, list[dict[str, float]]] = {}
    for result in read(f"bench/{name}/bench.json")["results"]:
        assert result.get("others", 0.0) <= 0.1, f"{name}: {result['name']} was disturbed"
        found.setdefault(result["name"], []).append(result["values"])
    return found


def settings_of(agent: str) -> tuple[type[config.Config], dict[str, dict[str, Any]]]:
    """The settings of an agent, and its presets."""
    from async_dqn.agents.table import find

    return find(agent).Config, dict(find(agent).presets)


def presets_table(agent: str) -> str:
    """One row for each setting that a preset changes."""
    settings, presets = settings_of(agent)
    made = [settings(**values) for values in presets.values()]
    forms = {float: "{:.3g}", int: "{:,}"}
    rows = [
        [f"`{field.name}`", *(forms.get(type(value), "{}").format(value) for value in values)]
        for field in dataclasses.fields(settings)
        if {*(values := [getattr(one, field.name) for one in made])} != {field.default}
    ]
    return table(["setting", *(f"`{name}`" for name in presets)], rows)


def flags_table(*names: str) -> str:
    """Flags that every agent has: default and help."""
    fields = {field.name: field for field in dataclasses.fields(config.Config)}
    rows = [(f"`--{name}`", f"`{fields[name].default}`", fields[name].metadata["help"]) for name in names]
    return table(["flag", "default", "what it does"], rows).replace("---:", "---")


def speed_table(name: str) -> str:
    """Whole programs, and what the cluster makes of each of them: the median of the ratios within a repetition."""
    found, dtype = bench_values(name), "bfloat16" if "bfloat16" in name else "float32"
    ours = [case for case in found if case.startswith("local")]
    peers = [case for case in found if "Baselines" in case]
    shown = [*ours, ALONE, *peers, *(case for case in [LEARNER.format(dtype)] if case in found)]
    columns = ("agent steps/s", "minibatches/s", "cores used", "resident MB")
    rows = []
    for case in shown:
        cells = [spread([v[key] for v in found[case]]) if key in found[case][0] else "-" for key in columns]
        ratios = [a["agent steps/s"] / b["agent steps/s"] for a, b in zip(found[CLUSTER], found[case], strict=True)]
        rows.append([case, *cells, "-" if case == CLUSTER else spread(ratios)])
    return table(["program", *columns, "cluster / this program"], rows) + bench_origin(f"bench/{name}")


def ways_table() -> str:
    """Whole programs side by side, each way to share the work."""
    columns = ("agent steps/s", "minibatches/s", "cores used", "resident MB")
    rows = [
        [case, *(spread([v[key] for v in values]) for key in columns)]
        for case, values in bench_values("ways").items()
        if "cores used" in values[0]
    ]
    return table(["program", *columns], rows) + bench_origin("bench/ways")


def cycle_table(*names: str) -> str:
    """Where the time of a worker goes, in percent."""
    parts = ("acting", "environment", "replay", "gradient", "copying", "waiting", "other")
    rows = []
    for name in names:
        found, dtype = bench_values(name), "bfloat16" if "bfloat16" in name else "float32"
        for case, process in ((ALONE, "baseline"), (CLUSTER, "worker 0"), (CLUSTER, "worker 1")):
            cells = [number(statistics.median(v[f"{part} %: {process}"] for v in found[case])) for part in parts]
            rows.append([f"{process}, {dtype}", *cells])
    return table(["process", *(f"{part} %" for part in parts)], rows)


def parts_table() -> str:
    hidden = ("locked", "push of a delta", "add, ", "sample, ", "memory, GB")
    rows = []
    for case, values in bench_values("parts").items():
        for key in values[0]:
            if "trip to 2 ps, bfloat16" not in case and not any(word in key for word in hidden):
                what = re.sub(r",? ?\b(ms|µs)\b/?", " ", key.removeprefix("both, ")).strip()
                title = re.sub("^trip", "round trip", case)  # as it has been called since
                name = title if case.startswith("minibatch") else f"{title}: {what}"
                rows.append([name, f"{spread([value[key] for value in values])} {'µs' if 'µs' in key else 'ms'}"])
    return table(["part", "time"], rows) + bench_origin("bench/parts")


def cores_table() -> str:
    """The cluster with each number of workers, on the cores of a machine alone, and with its card."""
    names = ("many-cores", "gpu")
    found = {name: bench_values(name) for name in names}

    def cells(name: str, case: str) -> list[str]:
        values, alone = found[name][case][0], found[name]["baseline"][0]
        rate = values["agent steps/s"]
        return [number(rate), number(rate / alone["agent steps/s"]), number(values["cores used"])]

    rows = [[case, *(cell for name in names for cell in cells(name, case))] for case in found["gpu"]]
    head = ("agent steps/s", "times the baseline", "cores used")
    columns = [f"{title}: {what}" for title in ("CPU", "one GPU") for what in head]
    return table(["program", *columns], rows) + "".join(bench_origin(f"bench/{name}", cores=16) for name in names)


def reached(folder: str) -> tuple[int, float]:
    """Agent steps and seconds until the mean of 100 games was at the goal."""
    summary = read(f"{folder}/summary.json")
    return summary["solved_at_steps"], summary["solved_at_seconds"]


def compared(agent: str, num_seeds: dict[str, int]) -> dict[str, list[str]]:
    """The runs of an agent on Pong in a folder of `compare`, by kind."""
    return {
        kind: [f"pong/{agent}/runs/{kind}-seed-{seed}" for seed in range(number)] for kind, number in num_seeds.items()
    }


DQN_RUNS = compared("dqn", {"baseline": 1, "async-2": 5})
PPO_RUNS = compared("ppo", {"baseline": 5, "async-2": 5})
UNNAMED = "family 26"  # of the processor of runs on Pong from before config.json named it; see results/README.md
PPO_ON_PS = [f"pong/ppo-on-ps/seed-{seed}" for seed in range(3)]
GIVEN = {"pqn": "", "paac": " --envs_per_worker=8 --t_max=10 --learning_rate=0.0015", "a3c": ""}  # flags of runs
SHARED_RUNS = {
    agent: sorted(f"pong/{agent}/{folder.name}" for folder in (RESULTS / "pong" / agent).iterdir()) for agent in GIVEN
}


def pong_table() -> str:
    """Every run of DQN on Pong."""
    rows = []
    for kind, folders in DQN_RUNS.items():
        workers = "one process" if kind == "baseline" else "1 ps + 2 workers"
        for folder in folders:
            seed = folder.partition("seed-")[2]
            summary, games = (read(f"{folder}/{name}.json") for name in ("summary", "evaluation"))
            steps, seconds = reached(folder)
            row = [f"[{workers}, seed {seed}](../results/{folder})", f"{steps:,}", f"{seconds / 60:.1f}"]
            row += [f"{summary['steps_per_second']:,.0f}", f"{games['mean']:.1f} ± {games['std']:.1f}"]
            rows.append(row)
    return table(["run", "agent steps to 18", "minutes to 18", "steps/s", "return of 30 greedy games"], rows)


def types_table() -> str:
    """DQN on Pong, computed in each type, and Rainbow."""
    kinds = {
        ("dqn", "bfloat16"): DQN_RUNS["async-2"],
        ("dqn", "float32"): [f"pong/float32/seed-{seed}" for seed in range(5)],
        ("rainbow", "bfloat16"): [f"pong/rainbow/seed-{seed}" for seed in range(3)],
    }
    rows = []
    for (agent, dtype), folders in kinds.items():
        settings = [read(f"{folder}/config.json")["config"] for folder in folders]
        assert {(one["agent"], one["compute_dtype"], one["num_workers"]) for one in settings} == {(agent, dtype, 2)}
        cells = [
            [reached(folder)[0] for folder in folders],
            [read(f"{folder}/evaluation.json")["mean"] for folder in folders],
        ]
        rows.append([f"`{agent}`", f"`{dtype}`", str(len(folders)), *map(spread, cells)])
    head = ["`--agent`", "`--compute_dtype`", "runs", "agent steps to 18", "mean return of 30 greedy games"]
    return table(head, rows)


def staleness_table() -> str:
    """DQN on Pong with more workers: the games that ended within two windows of agent steps."""
    windows = ((150_000, 200_000), (250_000, 300_000))
    names = ("num_workers", "envs_per_worker", "local_steps", "averages")
    more = [[f"pong/workers/{path.name}"] for path in sorted((RESULTS / "pong/workers").iterdir())]
    rows = []
    for folders in (DQN_RUNS["async-2"], *more):
        settings = read(f"{folders[0]}/config.json")["config"]
        row = [*(str(settings[name]) for name in names), str(len(folders))]
        for begin, end in windows:
            runs = [csv.DictReader((RESULTS / folder / "episodes.csv").read_text().splitlines()) for folder in folders]
            ended = [[float(g["episode_return"]) for g in run if begin <= int(g["env_steps"]) < end] for run in runs]
            row.append(spread([statistics.fmean(returns) for returns in ended]) if all(ended) else "-")
        rows.append(row)
    head = ["workers", "environments each", *(f"`--{name}`" for name in names[2:]), "runs"]
    return table([*head, *(f"mean return, {begin:,} to {end:,} steps" for begin, end in windows)], rows)


def game_table(name: str) -> str:
    described, summary, games = (read(f"{name}/{file}.json") for file in ("config", "summary", "evaluation"))
    cells = [f"{summary['env_steps']:,}", f"{summary['wall_seconds'] / 60:.0f}", f"{summary['mean_return_100']:.1f}"]
    cells += [f"{games['mean']:.1f} ± {games['std']:.1f}"]
    head = ["run", "agent steps", "minutes", "mean return of the last 100 games", f"{games['games']} greedy games"]
    origin = f"{described['host']['cpu']}, {described['git_revision'][:7]}"
    return table([*head, "processor, revision"], [[f"[{name}](../results/{name})", *cells, origin]])


def algorithms_table() -> str:
    """What each algorithm is, which actions it knows, and the agent steps that it needed on CartPole."""
    from async_dqn.agents.table import TABLE, find

    found, rows = read("studies/algorithms/results.json"), []
    for name in TABLE:
        agent = find(name)
        actions = "discrete, continuous" if agent.continuous_actions else "discrete"
        runs = [run for run in found["runs"] if run["kind"] == name]
        steps = [run["agent steps to the goal"] for run in runs if "agent steps to the goal" in run]
        cell = spread(steps) if len(steps) == len(runs) else f"{len(steps)} of {len(runs)} runs"
        rows.append([f"`{name}`", agent.summary, actions, cell])
    head = ["`--agent`", "what it is", "actions", "agent steps to 195 on CartPole"]
    return table(head, rows).replace("---:", "---") + study_origin(found)  # most of it is text


def sharing_table(folder: str = "sharing", goal: str = "195") -> str:
    return of_study(folder, "who shares what", {"mean staleness": "mean staleness"}, goal)


def parallelism_table() -> str:
    last = {"MB/s exchanged": "MB/s exchanged", "mean age of data": "mean age of rollouts, updates"}
    return of_study("parallelism", "what workers send, number of workers", last)


def workers_table() -> str:
    """Seconds to the goal of each agent and store, over the number of workers."""
    found = read("studies/workers/results.json")
    kinds = [run["kind"].rpartition(", ")[0].replace("shared_memory", "shared memory") for run in found["runs"]]
    return by_workers(found, kinds)


def local_steps_table() -> str:
    """The same of DQN on parameter servers, by its local steps."""
    found = read("studies/local-steps/results.json")
    found["runs"].sort(key=lambda run: run["local_steps"])
    return by_workers(found, [f"{run['local_steps']} local steps" for run in found["runs"]])


def by_workers(found: dict[str, Any], names: Sequence[str]) -> str:
    """Seconds to the goal, where all runs reached it: a row for each name, a column for each number of workers.

    Args:
      found: results.json of a study whose kinds end in the number of workers.
      names: of the row of each of its runs.
    """
    rows: dict[str, dict[int, list[float]]] = {name: {} for name in names}
    for run, name in zip(found["runs"], names, strict=True):
        workers = int(run["kind"].rpartition(", ")[2])
        rows[name].setdefault(workers, []).append(60 * run.get("minutes to the goal", math.nan))
    numbers = sorted({workers for row in rows.values() for workers in row})

    def cell(seconds: list[float]) -> str:
        reached = [value for value in seconds if math.isfinite(value)]
        if len(reached) < len(seconds):
            return f"{len(reached)} of {len(seconds)}"
        return spread(reached) if reached else "-"

    cells = [[name, *(cell(row.get(workers, [])) for workers in numbers)] for name, row in rows.items()]
    head = ["", *(f"{workers} worker{'s' * (workers != 1)}" for workers in numbers)]
    return table(head, cells) + study_origin(found)


def of_study(folder: str, kinds: str, last: dict[str, str], goal: str = "195") -> str:
    """What each kind of run of a study needed, where all runs reached the goal, and how fast it was.

    Args:
      folder: of the study, in results/studies.
      kinds: what the kinds are.
      last: quantities of the study, and the headings of their columns.
    """
    found = read(f"studies/{folder}/results.json")
    rows = []
    for kind in dict.fromkeys(run["kind"] for run in found["runs"]):
        runs = [run for run in found["runs"] if run["kind"] == kind]
        reached = [run for run in runs if "agent steps to the goal" in run]
        seconds = [{"seconds": 60 * run["minutes to the goal"]} for run in reached]
        cells = [
            spread([run[name] for run in of]) if of else "-"
            for name, of in (
                ("agent steps to the goal", reached),
                ("seconds", seconds),
                ("agent steps/s", runs),
                ("updates/s", runs),
                *((name, [run for run in runs if name in run]) for name in last),
            )
        ]
        if len(reached) < len(runs):
            cells[:2] = [f"{len(reached)} of {len(runs)} runs", "-"]
        rows.append([kind, *cells])
    head = [kinds, f"agent steps to {goal}", f"seconds to {goal}", "agent steps/s", "updates/s", *last.values()]
    return table(head, rows) + study_origin(found)


def study_origin(found: dict[str, Any]) -> str:
    call = found["calls"][-1]
    if sum("--seed=" in each["command"] for each in found["calls"]) > 1:  # each seed in a call of its own
        call["command"] = re.sub(r"--seed=\d+", "--seed=S", call["command"])
    revisions = ", ".join(dict.fromkeys(short(run["revision"]) for run in found["runs"]))
    return made_by(call["command"], call["date"], call["cpu"], call["versions"], revisions)


def kinds_table() -> str:
    """The kinds of run of Pong."""
    kinds = {
        "`ppo`, two workers, shared memory": PPO_RUNS["async-2"],
        "`ppo`, 1 ps + 2 workers": PPO_ON_PS,
        "`ppo`, one process": PPO_RUNS["baseline"],
        **{
            f"`{agent}`, two workers, shared memory{' (slower processor)' * (family(runs) == '25')}": runs
            for agent, runs in SHARED_RUNS.items()
        },
        "`dqn`, 1 ps + 2 workers": DQN_RUNS["async-2"],
        "`dqn`, one process": DQN_RUNS["baseline"],
    }
    rows = []
    for label, folders in kinds.items():
        summaries = [read(f"{folder}/summary.json") for folder in folders]
        cells = [
            [reached(folder)[0] for folder in folders],
            [round(reached(folder)[1] / 60, 1) for folder in folders],
            [one["steps_per_second"] for one in summaries],
            [read(f"{folder}/evaluation.json")["mean"] for folder in folders],
        ]
        rows.append([label, str(len(folders)), *map(spread, cells)])
    head = ["", "runs", "agent steps to 18", "minutes to 18", "agent steps/s", "mean return of 30 greedy games"]
    commands = {
        "compare --agent=ppo --store=shared_memory --env=pong --seeds=5": PPO_RUNS["baseline"] + PPO_RUNS["async-2"],
        "local --agent=ppo --env=pong --local_steps=16 --seed=S": PPO_ON_PS,
        **{
            f"local --agent={agent} --store=shared_memory --env=pong{GIVEN[agent]} --seed=S": runs
            for agent, runs in SHARED_RUNS.items()
        },
        "local --env=pong --seed=S": DQN_RUNS["async-2"],
        "baseline --env=pong --seed=S": DQN_RUNS["baseline"],
    }
    made = [[f"`async-dqn {command}`", *when(folders), family(folders)] for command, folders in commands.items()]
    cpu, tensorflow, ours = machine([folder for folders in commands.values() for folder in folders])
    origin = f"\n\nMade on {cpu}, 2 cores; TensorFlow {tensorflow}, async-dqn {ours}, by:\n\n"
    sources = table(["command", "date", "revision", "processor family"], made).replace("---:", "---")
    return table(head, rows) + origin + sources


def when(folders: list[str]) -> list[str]:
    """The dates of some runs, and their revisions."""
    configs = [read(f"{folder}/config.json") for folder in folders]
    return [
        ", ".join(sorted({one[name][:length] + one[name][40:] for one in configs}))
        for name, length in (("started", 10), ("git_revision", 7))
    ]


def family(folders: list[str]) -> str:
    """The family of the processor of some runs, as processors of one name are not equally fast."""
    models = {read(f"{folder}/config.json")["host"].get("cpu_model", UNNAMED) for folder in folders}
    return ", ".join(sorted(re.sub("family ([0-9]+).*", r"\1", one) for one in models))


def machine(folders: list[str]) -> tuple[str, str, str]:
    """The processor of some runs, and the versions of TensorFlow and of this program: the same for all."""
    configs = [read(f"{folder}/config.json") for folder in folders]
    (found,) = {
        (one["host"]["cpu"], *(one["versions"][name] for name in ("tensorflow", "async-dqn"))) for one in configs
    }
    return found


def lunarlander_table() -> str:
    """Each agent's three runs on LunarLander in one process."""
    rows, runs = [], []
    for agent in dict.fromkeys(path.name.partition("-")[0] for path in sorted((RESULTS / "lunarlander").iterdir())):
        folders = [f"lunarlander/{agent}-seed-{seed}" for seed in range(3)]
        steps = [found for found, _ in map(reached, folders) if found]
        cell = spread(steps) if len(steps) == len(folders) else f"{len(steps)} of {len(folders)} runs"
        rows.append([f"`{agent}`", cell])
        runs += folders
    command = "async-dqn baseline --agent=AGENT --env=LunarLander-v3 --stop_at_return=200 --threads=1 --seed=S"
    dates, revisions = when(runs)
    cpu, tensorflow, ours = machine(runs)
    versions = f"TensorFlow {tensorflow}, async-dqn {ours}, revisions {revisions}"
    made = f"\n\nMade by `{command}`, {dates}; {cpu}, 2 cores; {versions}."
    return table(["`--agent`", "agent steps to 200"], rows) + made


def soak_table() -> str:
    found = read("pong/soak/bench.json")["soak"]
    processes = list(dict.fromkeys(growth["process"] for growth in found["growth"]))[:-1]
    kinds = ("resident MB", "descriptors", "threads")
    rows = [[process, *(found[f"{process}: {kind}"] for kind in kinds)] for process in processes]
    return table(["process", *kinds], rows) + bench_origin("pong/soak")


def faults_table(name: str) -> str:
    """One row a fault: rounds, those that ended as promised, what was lost, how long it took."""
    found = read(f"faults/{name}/chaos.json")
    kinds: dict[str, list[dict[str, Any]]] = {}
    for one in found["rounds"]:
        kinds.setdefault(one["kind"], []).append(one)
    rows = []
    for kind, rounds in [*kinds.items(), ("**all**", found["rounds"])]:
        seconds = [value for one in rounds for value in one["recoveries"]]
        cells = [len(rounds), sum(one["verdict"] == "ok" for one in rounds), max(one["steps_lost"] for one in rounds)]
        times = [f"{found(seconds):.1f}" if seconds else "-" for found in (statistics.median, max)]
        rows.append([kind, *map(str, cells), *times])
    head = ["fault", "rounds", "as promised", "agent steps lost at most", "seconds to recover: median", "most"]
    origin = [found[key] for key in ("command", "date", "cpu", "versions")]
    return table(head, rows) + made_by(*origin, short(found.get("git revision", "")))


TABLES: dict[str, Callable[..., str]] = {
    name.removesuffix("_table"): made for name, made in globals().items() if name.endswith("_table")
}


def make(words: str) -> str:
    kind, *arguments = words.split()
    return f"{TABLES[kind](*arguments)}\n"


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(MADE.sub(lambda found: f"{found[1]}{make(found[2])}{found[4]}", path.read_text()))
