"""Pages from templates: what no template wrote is escaped, and what a template asks for must be given."""

from __future__ import annotations

import re

import jinja2
import pytest

from tlt.analysis.drawing.figure import Picture, draw
from tlt.analysis.drawing.html import TEMPLATES, page
from tlt.analysis.drawing.tables import TextTable

EVIL = '<script>alert("x")</script>\'"><b>'


def test_no_template_switches_escaping_off() -> None:
    templates = sorted(TEMPLATES.glob("**/*.html"))
    assert len(templates) >= 8
    for path in templates:
        source = path.read_text(encoding="utf-8")
        assert not re.search(r"\|\s*safe|autoescape", source), path


def test_cells_and_captions_are_escaped_and_their_figures_stay_in_one_line() -> None:
    _, drawing = draw(lambda _: EVIL, 2.0, (EVIL,))
    values = {
        "sentences": (EVIL,),
        "errors": TextTable((EVIL, "Error"), [(EVIL, "+1.0% [-2.0, +3.0] 5 %")], names=(1,)),
        "source": EVIL,
        "picture": Picture(EVIL, EVIL, EVIL, drawing),
        "drifts": TextTable((EVIL,), [(EVIL,)]),
        "medians": TextTable((EVIL,), [(EVIL,)]),
    }
    html = page("crosscheck/predicted_training.html", predicted=values)
    assert "<script" not in html
    assert "<b>" not in html
    assert html.count("&lt;script&gt;") == 12
    assert '<td class="name">+1.0% [-2.0,\u00a0+3.0] 5\u00a0%</td>' in html
    assert 'aria-label="&lt;script&gt;' in html
    assert html.count("<svg ") == 1


def test_what_stands_in_backticks_is_set_as_code_and_escaped() -> None:
    source = "`tlt <b>` measures it, ` alone stays"
    table = TextTable(("`a`",), [("x",)])
    values = {"sentences": (source,), "errors": table, "source": "", "picture": None, "drifts": table,
              "medians": table}  # fmt: skip
    html = page("crosscheck/predicted_training.html", predicted=values)
    assert "<code>tlt &lt;b&gt;</code> measures it, ` alone stays" in html
    assert "<code>a</code></th>" in html


def test_the_title_of_a_page_holds_no_tags() -> None:
    html = page("drawing/base.html", title="a `b` <c>")
    assert "<title>a `b` &lt;c&gt;</title>" in html


def test_a_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        page("crosscheck/predicted_training.html", predicted={})
