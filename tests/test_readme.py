"""The pages say what the code and the files in results/ say, and stay short."""

import contextlib
import io
import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from readme_tables import DOCS, MADE, PAGES, RESULTS, ROOT, make


def prose(page: Path) -> str:
    """A page without its tables, the lines on how they were made, code blocks and comments."""
    text = re.sub(r"^```.*?^```", "", MADE.sub("", page.read_text()), flags=re.DOTALL | re.MULTILINE)
    return "\n".join(line for line in text.splitlines() if not line.startswith(("|", "<!--")))


def code_lines(page: Path) -> list[str]:
    """The lines of its code blocks, without what follows a `#`."""
    blocks = re.findall(r"^```(?:\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [re.sub(r"\s+#.*", "", re.sub(r"^\S+\$ ", "", line)) for block in blocks for line in block.splitlines()]


def program() -> Any:
    """The command line, imported late: it imports all that there is, and tables are made without it."""
    from async_dqn.cli import main

    return main


def help_of(*arguments: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        assert program().main([*arguments, "--help"]) == 0
    return shown.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_are_those_of_code_and_results(page: Path) -> None:
    for _, words, found, _ in MADE.findall(page.read_text()):
        assert found == make(words), f"{words}: run python tests/readme_tables.py"


def test_what_the_runs_on_cartpole_end_with_is_on_the_page_of_algorithms() -> None:
    ends = [json.loads(path.read_text())["mean_return_100"] for path in RESULTS.glob("cartpole/*/summary.json")]
    assert len(ends) == 10
    assert f"at least {math.floor(min(ends))}." in " ".join((ROOT / "docs" / "algorithms.md").read_text().split())


def test_every_flag_named_exists() -> None:
    from async_dqn.agents.table import TABLE

    options = "".join(help_of(name, f"--agent={agent}") for name in ("local", "worker") for agent in TABLE)
    options += "".join(help_of(name) for name in program().COMMANDS)
    known = {"help", "quick", *re.findall(r"--(?:\[no\])?(\w+)", options)}
    known |= set(re.findall(r'"--(\w+)"', (ROOT / "tests" / "chaos" / "__main__.py").read_text()))
    ours = re.compile(r"(?:`|async-dqn[^`\n]*? |launch/[^`\n]*? )--(\w+)")
    for page in PAGES:
        named = set(ours.findall(MADE.sub("", page.read_text())))
        assert {flag.removeprefix("no") for flag in named} - {name.removeprefix("no") for name in known} == set(), page


def test_every_command_of_the_code_blocks_is_one() -> None:
    for page in PAGES:
        for line in code_lines(page):
            words = shlex.split(line) if line.startswith(("launch/", "async-dqn ")) else []
            if words and words[0] != "async-dqn":
                assert (ROOT / words[0]).stat().st_mode & 0o100, line
                words = ["async-dqn", Path(words[0]).stem, *words[1:]]
            if words and words[1] not in ("test", "chaos"):
                assert words[1] in program().COMMANDS, line
                shown = help_of(words[1], *(word for word in words if word.startswith("--agent=")))
                flags = [word[2:].partition("=")[0] for word in words if word.startswith("--")]
                assert all(re.search(rf"--(\[no\])?{flag.removeprefix('no')}\b", shown) for flag in flags), line
    assert all(re.search(rf"`{name}[` ]", PAGES[0].read_text()) for name in program().COMMANDS)


def test_links_and_paths_lead_somewhere() -> None:
    for page in PAGES:
        text = page.read_text()
        for link in re.findall(r"\]\((?!https?:)([^)]+)\)", text):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page}: {link}"
            if anchor:
                heads = re.findall(r"^#+ (.*)", target.read_text(), re.MULTILINE)
                assert anchor in [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads], link
        for path in re.findall(r"`((?:launch|docs|results|tests|cluster_specs|async_dqn)/[\w./-]*)", text):
            assert (ROOT / path).exists() or "NAME" in path, f"{page}: {path}"


def test_every_result_is_named() -> None:
    named = PAGES[1].read_text()
    for first, second in {path.relative_to(RESULTS).parts[:2] for path in RESULTS.rglob("*.json")}:
        assert f"`{first}`" in named or f"`{first}/{second}`" in named, (first, second)


def test_pages_are_short() -> None:
    assert len(prose(PAGES[0]).split()) <= 1200
    assert sorted(path.stem for path in (ROOT / "docs").glob("*.md")) == DOCS
    assert sum(len(prose(page).split()) for page in PAGES[2:]) <= 7000
