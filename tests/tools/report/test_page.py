import re

import pytest

from async_dqn.tools.report.page import Picture, Section, Table, Text, markdown, page

SECTIONS = [
    Section("One <b>", [Text(["A & B"]), Table(["", "x|y"], [["a", "1"], ["<i>", "2"]])]),
    Section("Two", [Text(["first", "second"]), Picture("figures/a.png", 'what "it" shows')]),
]


def test_markdown_has_everything_in_order():
    assert markdown("Title", SECTIONS) == (
        "# Title\n\n## One <b>\n\nA & B\n\n|  | x/y |\n| --- | ---: |\n| a | 1 |\n| <i> | 2 |\n\n"
        '## Two\n\n- first\n- second\n\n![what "it" shows](figures/a.png)\n\nwhat "it" shows\n'
    )


@pytest.mark.parametrize(("file", "kind"), [("a.png", "image/png"), ("a.svg", "image/svg+xml")])
def test_a_page_needs_nothing_else(tmp_path, file, kind):
    (tmp_path / file).write_bytes(b"abc")
    made = page("T <1>", [*SECTIONS[:1], Section("Two", [Picture(file, "<c>")])], tmp_path)
    assert "<title>T &lt;1&gt;</title>" in made and "<h2>One &lt;b&gt;</h2>" in made and "<p>A &amp; B</p>" in made
    assert "<td>&lt;i&gt;</td><td>2</td>" in made
    assert f'src="data:{kind};base64,YWJj"' in made and "&lt;c&gt;" in made
    assert re.findall(r'(?:src|href)="(?!data:)|https?://|<script', made) == []
    assert 'name="viewport"' in made


def test_a_picture_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(OSError):
        page("T", SECTIONS, tmp_path)
