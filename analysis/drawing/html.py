"""Pages from templates, which lie beside their reports: what no template wrote is escaped."""

from __future__ import annotations

import base64
import re
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

TEMPLATES = Path(__file__).parents[1]
# Spaces at which a browser must not break a line: inside an interval, and before a percent sign.
_INSIDE = re.compile(r"(?<=[0-9%],) (?=[0-9])|(?<=[0-9x%],) (?=[+-]?[0-9]+[^ ]*\])| (?=%)")


def page(template: str, **values: object) -> str:
    """Return a page: no scripts, nothing loaded from elsewhere, every value escaped.

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
        finalize=_unbroken,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["base64"] = lambda data: base64.b64encode(data).decode()
    return environment


def _unbroken(value: object) -> object:
    """Put no-break spaces into text; what a template has escaped already is left as it is."""
    return _INSIDE.sub("\u00a0", value) if type(value) is str else value
