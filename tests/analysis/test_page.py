"""The page in a real browser: it loads without an error, and each control changes what it should.

A script that is put into the page uses the controls as a reader does and writes what it sees into the page,
which the browser then prints. Skipped where there is no Chromium.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from importlib import util
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.analysis.fake_run import write_run
from tests.analysis.test_kstar_pictures import map_of
from tlt.analysis.kstar.report import present_kstar
from tlt.analysis.report import answer_of, write_report
from tlt.traces.results.kstar import write_kstar
from tlt.traces.results.what_if import WHAT_IF, PolicyWhatIf, WhatIf
from tlt.traces.runs.runfolder import Comparison, write_json

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = util.find_spec("axe_core_python")
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here (Debian package chromium)"),
    pytest.mark.slow,
]
WIDTHS, MAP_WIDTH = (400, 1400), 420
# Before anything else runs: what goes wrong is kept.
WATCH = """
window.wrong = [];
window.addEventListener("error", (event) => window.wrong.push(event.message));
window.addEventListener("securitypolicyviolation", (event) => window.wrong.push(event.violatedDirective));
console.error = (...words) => window.wrong.push(words.join(" "));
"""
# After the page's own scripts: each control is used, and what the page says then is kept.
USE = """
const at = (id) => document.getElementById(id);
const fire = (id, value, kind) => { at(id).value = value; at(id).dispatchEvent(new Event(kind)); };
const seen = {shown: !at("explore").hidden, width: window.innerWidth};
const say = () => at("asked").textContent;
seen.study = say();
seen.overflow = document.documentElement.scrollWidth - window.innerWidth;
seen.bars = at("bars").querySelectorAll(".bars .point").length;
fire("acceptance", 0, "input");
seen.fewest = say();
seen.first_accepted = at("acceptance-value").textContent;
fire("acceptance", 100, "input");
seen.most = say();
at("reset").click();
seen.reset = say();
fire("gpus", "32", "change");
seen.gpus = say();
at("reset").click();
fire("price", "2.5", "input");
seen.price = say();
at("reset").click();
document.querySelector('#policies input[value="fast"]').click();
seen.off = say();
seen.bars_off = at("bars").dataset.policies;
at("reset").click();
seen.gantt = at("gantt").dataset.policy;
seen.gantt_bars = at("gantt").querySelectorAll(".bars .point").length;
fire("gantt-policy", "fast", "change");
seen.gantt_then = at("gantt").dataset.policy;
const table = document.querySelector("table");
const names = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
seen.rows = names();
table.querySelector("th .sorter").click();
seen.sorted = names();
table.querySelector("th .sorter").click();
seen.sorted_back = names();
const paper = () => getComputedStyle(document.body).backgroundColor;
const colours = [paper()];
for (let turn = 0; turn < 2; turn += 1) { at("theme").click(); colours.push(paper()); }
seen.colours = colours;
const reached = [...document.querySelectorAll("button, input, select, a[href], summary, [tabindex]")];
seen.unreachable = reached.filter((each) => each.tabIndex < 0 && !each.closest(".js-plotly-plot")).length;
seen.unnamed = reached.filter((each) => each.matches("input, select") && !each.labels.length).length;
seen.wrong = window.wrong;
"""
USE_MAP = """
const at = (id) => document.getElementById(id);
const fire = (id, value, kind) => { at(id).value = value; at(id).dispatchEvent(new Event(kind)); };
const seen = {width: window.innerWidth, map: [at("told").textContent]};
seen.overflow = document.documentElement.scrollWidth - window.innerWidth;
fire("context", "4096", "change");
seen.map.push(at("told").textContent);
fire("rate", "2", "input");
seen.map.push(at("told").textContent);
seen.bars = at("kmap-chart").querySelectorAll(".bars .point").length;
seen.wrong = window.wrong;
"""
AUDIT = """
for (const theme of ["light", "dark"]) {
  document.documentElement.dataset.theme = theme;
  document.dispatchEvent(new Event("themechange"));
  const found = await axe.run(document, {resultTypes: ["violations"]});
  seen["axe_" + theme] = found.violations.map((each) =>
    each.id + ": " + each.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | "));
}
"""


def what_if() -> WhatIf:
    """Return a grid by hand: `fast` gains by drafts, and loses where hardly any is accepted."""
    rows = {"none": ((1.0, 1.0, 1.0), (0.5, 1.0)), "fast": ((0.8, 1.0, 4.0), (0.6, 1.0)),
            "slow": ((0.9, 1.0, 1.5), (0.5, 1.0))}  # fmt: skip
    return WhatIf(
        steps=1, exponents=(0.5, 1.0, 3.0), first_accepted=(0.8944, 0.8, 0.512), exponent_error=0.0,
        gpus=(16, 32),
        policies=tuple(PolicyWhatIf(policy=name, by_acceptance=one, by_gpus=(other[1], other[0]))
                       for name, (one, other) in rows.items()),
    )  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    for name, speed in (("none", 1.0), ("fast", 3.0), ("slow", 0.8)):
        write_run(folder / name, policy=name, speed=speed, steps=12)
    write_json(folder / "comparison.json", Comparison(name="a <b>page</b>", runs=("none", "fast", "slow")))
    write_json(folder / WHAT_IF, what_if())
    return write_report(folder)


def using(page: Path, name: str, script: str) -> None:
    """Write a copy of a page that uses its own controls and tells the page around it what it saw."""
    library = ""
    if AXE is not None and AXE.origin is not None:
        library = (Path(AXE.origin).parent / "axe.min.js").read_text(encoding="utf-8")
        script += AUDIT
    end = (
        f"<script>{library}</script><script>(async () => {{ {script} "
        "parent.postMessage(JSON.stringify(seen), '*'); })();</script></body>"
    )
    text = page.read_text(encoding="utf-8")
    text = text.replace("<head>", f"<head><script>{WATCH}</script>", 1).replace("</body>", end)
    page.with_name(name).write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def seen(page: Path) -> dict[int, dict[str, Any]]:
    """Open the page in a frame of each width, and the page of a map in one, and return what each saw."""
    using(page, "used.html", USE)
    folder = page.parent / "map"
    write_kstar(folder, map_of())
    present_kstar(folder, Console(quiet=True))
    using(folder / "kstar.html", "used.html", USE_MAP)
    sources = [*(("used.html", width) for width in WIDTHS), ("map/used.html", MAP_WIDTH)]
    return {one["width"]: one for one in opened(page.parent, sources)}


def opened(folder: Path, sources: list[tuple[str, int]]) -> list[dict[str, Any]]:
    """Open pages below a folder, each in a frame of a width, and return what they told."""
    frame = folder / "frames.html"  # a window may not be as narrow as a phone
    frames = "".join(
        f'<iframe src="{source}" style="width:{width}px;height:900px;border:0"></iframe>'
        for source, width in sources
    )
    told = (
        "<script>addEventListener('message', (event) => { const told = document.createElement('pre'); "
        "told.className = 'told'; told.textContent = event.data; document.body.append(told); })</script>"
    )
    frame.write_text(f'<body style="margin:0">{told}{frames}</body>', encoding="utf-8")
    assert BROWSER is not None
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
         "--virtual-time-budget=9000", "--window-size=1500,1000", "--dump-dom", frame.as_uri()],
        capture_output=True, text=True, timeout=400, check=True,
    )  # fmt: skip
    found = re.findall(r'<pre class="told">(.*?)</pre>', done.stdout, re.DOTALL)
    assert len(found) == len(sources), done.stdout[-2000:] + done.stderr[-2000:]
    return [json.loads(html.unescape(one)) for one in found]


@pytest.mark.parametrize("width", WIDTHS)
def test_each_control_changes_what_it_should(page: Path, seen: dict[int, dict[str, Any]], width: int) -> None:
    told = seen[width]
    answer = answer_of(page.parent)
    best, base = answer.of("fast"), answer.of("none")
    assert answer.recommended == "fast"
    assert told["wrong"] == []
    assert told["shown"]
    assert told["width"] == width
    assert told["overflow"] <= 0
    assert told["bars"] == 3
    gain = f"{best.speedup.value:.2f}x"
    assert told["study"].startswith("As in the study: fast, ")
    assert gain in told["study"]
    # at the fewest accepted drafts fast takes 4 times as long: none is left the fastest
    assert told["fewest"].startswith("At these settings, over the first steps: none, ")
    assert told["first_accepted"] == "51 %"
    assert f"{best.speedup.value / 0.8:.2f}x" in told["most"]
    assert told["reset"] == told["study"]
    # twice the GPUs: 0.6 of the time under fast, 0.5 under none
    assert f"{best.speedup.value * 0.5 / 0.6:.2f}x" in told["gpus"]
    per_million = base.step_s / base.trained_tokens * 1e6
    usd = per_million / best.speedup.value * 16 * 2.5 / 3600
    assert f"{float(f'{usd:.4g}'):g}" in told["price"].replace(",", "")
    assert "USD" in told["price"]
    assert "none, " in told["off"]
    assert told["bars_off"] == "none|slow"
    assert (told["gantt"], told["gantt_then"]) == ("none", "fast")
    assert told["gantt_bars"] > 8
    assert sorted(told["rows"]) == told["sorted"] == told["sorted_back"][::-1]
    assert len(set(told["colours"])) == 2
    assert (told["unreachable"], told["unnamed"]) == (0, 0)


def test_a_map_is_asked_by_context_and_acceptance(seen: dict[int, dict[str, Any]]) -> None:
    told = seen[MAP_WIDTH]
    assert told["wrong"] == []
    assert told["overflow"] <= 0
    configured, context, rate = told["map"]
    assert configured.startswith("At 512 tokens of context, acceptance as configured, drafting pays")
    assert context.startswith("At 4,096 tokens of context, acceptance as configured")
    assert rate.startswith("At 4,096 tokens of context, acceptance each further draft accepted with 0.50")
    assert told["bars"] == 3


@pytest.mark.skipif(AXE is None, reason="axe-core-python is not installed")
@pytest.mark.parametrize("width", [*WIDTHS, MAP_WIDTH])
def test_nothing_is_wrong_for_readers_with_aids(seen: dict[int, dict[str, Any]], width: int) -> None:
    assert (seen[width]["axe_light"], seen[width]["axe_dark"]) == ([], [])


def test_the_page_reads_without_scripts(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    shown = re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.DOTALL)
    assert '<section id="explore" hidden' in shown
    assert "Run fast: its RL steps are " in shown
    assert shown.count("<svg ") == 5
    assert "a &lt;b&gt;page&lt;/b&gt;" in shown
    assert not re.search(r"""(src|href)=["'](https?:)?//""", shown)
