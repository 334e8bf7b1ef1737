"""A report as text, tables and pictures: the same content as markdown and as one HTML file that needs nothing else."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from async_dqn.tools.bench.tables import table


class Text(NamedTuple):
    """A paragraph, or a list where there are several lines."""

    lines: Sequence[str]


class Table(NamedTuple):
    """A table whose first column is text and whose others are numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


class Picture(NamedTuple):
    """A picture in a file, relative to the report, and what it shows."""

    file: str
    caption: str


class Section(NamedTuple):
    """Blocks under a title."""

    title: str
    blocks: Sequence[Text | Table | Picture]


_STYLE = """
:root { color-scheme: light }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; font: 16px/1.5 system-ui, sans-serif }
body { color: #222; background: #fff }
h1 { font-size: 1.6rem; line-height: 1.25 } h2 { margin-top: 2.5rem; font-size: 1.2rem }
figure { margin: 1.5rem 0 } img { width: 100%; height: auto } figcaption { color: #555; font-size: .9rem }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top }
th:first-child, td:first-child { padding-left: 0; text-align: left } ul { padding-left: 1.2rem }
li, p { overflow-wrap: anywhere }
"""


def markdown(title: str, sections: Sequence[Section]) -> str:
    """The report, its pictures as links to their files."""
    blocks = [f"# {title}"]
    for section in sections:
        blocks.append(f"## {section.title}")
        blocks += [_markdown_block(block) for block in section.blocks]
    return "\n\n".join(blocks) + "\n"


def _markdown_block(block: Text | Table | Picture) -> str:
    if isinstance(block, Text):
        return block.lines[0] if len(block.lines) == 1 else "\n".join(f"- {line}" for line in block.lines)
    if isinstance(block, Picture):
        return f"![{block.caption}]({block.file})\n\n{block.caption}"
    return table(block.header, block.rows)


def page(title: str, sections: Sequence[Section], folder: Path) -> str:
    """The report with its pictures, which lie in `folder`, inside. Raises OSError where one cannot be read."""
    body = [f"<h1>{html.escape(title)}</h1>"]
    for section in sections:
        body.append(f"<h2>{html.escape(section.title)}</h2>")
        body += [_html_block(block, folder) for block in section.blocks]
    head = (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{html.escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n"
    )
    return head + "\n".join(body) + "\n</body>\n</html>\n"


def _html_block(block: Text | Table | Picture, folder: Path) -> str:
    if isinstance(block, Text):
        if len(block.lines) == 1:
            return f"<p>{html.escape(block.lines[0])}</p>"
        return f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in block.lines)}</ul>"
    if isinstance(block, Picture):
        data = base64.b64encode((folder / block.file).read_bytes()).decode()
        kind = "svg+xml" if block.file.endswith(".svg") else "png"
        caption = html.escape(block.caption)
        return (
            f'<figure><img alt="{caption}" src="data:image/{kind};base64,{data}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    rows = "".join(f"<tr>{_cells('td', row)}</tr>" for row in block.rows)
    return (
        f'<div class="scroll"><table><thead><tr>{_cells("th", block.header)}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cells(tag: str, cells: Sequence[str]) -> str:
    return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
