"""Pages from templates, which lie beside their reports: what no template wrote is escaped.

A page is one file. It reads without scripts; with them it sorts, zooms and can be asked. Its policy for
content lets it load nothing.
"""

from __future__ import annotations

import base64
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

if TYPE_CHECKING:
    from tlt.analysis.drawing.figure import Picture

TEMPLATES = Path(__file__).parents[1]
LONGEST_SVG = 600_000  # characters
_CODE = re.compile(r"`([^`\n]+)`")  # names and commands, as a terminal shows them
# Spaces at which a browser must not break a line: inside an interval, and before a percent sign.
_INSIDE = re.compile(r"(?<=[0-9%],) (?=[0-9])|(?<=[0-9x%],) (?=[+-]?[0-9]+[^ ]*\])| (?=%)")


def page(template: str, **values: object) -> str:
    """Return a page: nothing loaded from elsewhere, every value escaped.

    `template` is a path below the folder of the reports. A value that it asks for and is not given is an
    error of the program (jinja2.UndefinedError).
    """
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_for_page,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["drawn"] = drawn
    environment.filters["data"] = data
    environment.globals["script"] = script
    return environment


def drawn(picture: Picture) -> Markup:
    """Return a picture for a page: as SVG in the page's colours, or as an image if that would be too long."""
    title, svg = escape(picture.title), picture.image.svg
    if len(svg) > LONGEST_SVG:
        png = base64.b64encode(picture.png).decode()
        return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(title, png)
    named = svg.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)
    return Markup(named)  # noqa: S704 -- matplotlib's own, its texts escaped


def data(value: object) -> Markup:
    """Return a value as JSON that may stand inside a script element."""
    text = msgspec.json.encode(value).decode()
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704 -- JSON without a tag


@cache
def script(name: str) -> Markup:
    """Return a script of this folder by its path, to stand inside a script element."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    assert "</script" not in text, name
    return Markup(text)  # noqa: S704 -- a file of this package


def _for_page(value: object) -> object:
    """Put no-break spaces into text and set what stands in backticks as code; what a template has escaped
    already is left as it is.
    """
    if type(value) is not str:
        return value
    text = _INSIDE.sub("\u00a0", value)
    if "`" not in text:
        return text
    marked = _CODE.sub(r"<code>\1</code>", str(escape(text)))
    return Markup(marked)  # noqa: S704 -- escaped before the tags were put in
