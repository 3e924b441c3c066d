"""The HTML of a report: one file for the screen and for paper, into which nothing is fetched.

The figures are part of the file, the fonts are the reader's own, and a content policy forbids the rest. Content
comes in as HTML; what is not ours, such as sampled text, goes through `shown` first.
"""

import base64
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from looprl.runs import plain

MOST_CHARACTERS = 2000
STYLE = """
:root { color-scheme: light; }
body { background: #fff; color: #000; font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; }
h2 { border-bottom: 1px solid #000; font-size: 1.2rem; margin-top: 2.2rem; }
table { border-collapse: collapse; }
th, td { border-bottom: 1px solid #bbb; padding: .25rem .9rem .25rem 0; text-align: left; vertical-align: top; }
thead th, thead td { border-bottom: 1px solid #000; }
caption { padding-bottom: .3rem; text-align: left; }
.number { font-variant-numeric: tabular-nums; text-align: right; }
.headline td, .headline th { font-size: 1.2rem; }
.note { border-left: 4px solid #000; margin: 1rem 0; padding: .2rem 0 .2rem .8rem; }
figure { margin: 1rem 0 0; }
figure img { display: block; height: auto; max-width: 100%; width: 100%; }
figcaption { color: #333; font-size: .9rem; }
pre, .text { font: .82rem/1.45 ui-monospace, monospace; margin: 0; overflow-wrap: anywhere; white-space: pre-wrap; }
.samples { table-layout: fixed; width: 100%; }
.verdict { display: block; font-size: .82rem; margin-top: .3rem; }
.config { column-gap: 2rem; columns: 2; }
@media (max-width: 40rem) { .config { columns: 1; } }
@media print {
  @page { margin: 15mm; }
  body { font-size: 10pt; margin: 0; max-width: none; padding: 0; }
  figure, tr, .headline { break-inside: avoid; }
  section:has(.samples) { break-before: page; }
  .config { columns: 3; font-size: 6.5pt; }
  h2 { break-after: avoid; }
  thead { display: table-header-group; }
}
"""


def page(title: str, sections: Iterable[str]) -> str:
    """A whole page; empty sections are left out. `title` is shown literally, sections are HTML."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{shown(title)}</title>\n<link rel="icon" href="data:,">\n<style>{STYLE}</style>\n'
        f"</head>\n<body>\n<main>\n<h1>{shown(title)}</h1>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main>\n</body>\n</html>\n"
    )


def section(heading: str, content: str) -> str:
    """A part of the page under a heading."""
    return f"<section>\n<h2>{heading}</h2>\n{content}\n</section>"


def configuration(settings: Mapping[str, Any]) -> str:
    """The part of the page that holds the settings, as YAML."""
    text = yaml.safe_dump(plain(settings), sort_keys=False, allow_unicode=True)
    return section("Configuration", f'<pre class="config">{shown(text, None)}</pre>')


def notes(texts: Iterable[str]) -> str:
    """What the reader must know before the rest, a paragraph each."""
    return "".join(f'<p class="note">{shown(text)}</p>' for text in texts)


def figure(png: bytes | None, alt: str, caption: str) -> str:
    """A figure with the text that stands for it and its caption; says so where there was nothing to draw."""
    if png is None:
        return "<p>Nothing was logged.</p>"
    data = base64.b64encode(png).decode()
    return (
        f'<figure><img alt="{shown(alt)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{shown(caption)}</figcaption></figure>"
    )


def number_table(columns: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], kind: str = "") -> str:
    """A table of numbers: column names, then each row's name with its cells, all shown literally.

    A row with a single cell spans all columns. `kind`: a class of the style sheet.
    """
    head = "".join(f'<th class="number" scope="col">{shown(name)}</th>' for name in columns)
    body = ""
    for name, cells in rows:
        if len(cells) == 1 < len(columns):
            row = f'<td colspan="{len(columns)}">{shown(cells[0])}</td>'
        else:
            row = "".join(f'<td class="number">{shown(cell)}</td>' for cell in cells)
        body += f'<tr><th scope="row">{shown(name)}</th>{row}</tr>'
    opening = f'<table class="{kind}">' if kind else "<table>"
    return f"{opening}<thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>"


def text(value: Any) -> str:
    """A prompt or completion, whether plain text or a list of messages."""
    if isinstance(value, list) and all(isinstance(message, dict) for message in value):
        value = "\n".join(f"{message.get('role')}: {message.get('content')}" for message in value)
    return f'<div class="text">{shown(inline(value).strip()) or "(empty)"}</div>'


def inline(value: Any) -> str:
    """A setting in one line."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def shown(text: str, most: int | None = MOST_CHARACTERS) -> str:
    """The text as it is, safe in HTML; control characters are spelled out, and what is too long is cut."""
    if most is not None and len(text) > most:
        text = f"{text[:most]} ..."
    return html.escape("".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text))
