"""Every other page in a real browser: it loads without an error, fits its width, and reads with aids."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from tests.analysis.fake_run import write_comparison
from tests.analysis.test_page import AXE, BROWSER, WIDTHS, opened, using
from tests.analysis.test_plan_report import files
from tests.analysis.training_runs import write_training
from tests.sim.measured_world import write_calibration, write_measured
from tests.sim.observed_world import GIVEN, lengths, write_observed
from tlt.analysis.report import present
from tlt.commands.report import report
from tlt.sim.counterfactual.answer import counterfactual
from tlt.sim.counterfactual.observed_run import observe
from tlt.sim.counterfactual.settings import replay_of
from tlt.sim.validate.replay_measured import simulate_replay
from tlt.traces.importers.reading.items import Options
from tlt.traces.results.counterfactual import OBSERVED_TRACE
from tlt.traces.results.plan import write_plan

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here (Debian package chromium)"),
    pytest.mark.slow,
]
LOOK = """
const seen = {page: "NAME", width: window.innerWidth, wrong: window.wrong};
seen.overflow = document.documentElement.scrollWidth - window.innerWidth;
seen.pictures = document.querySelectorAll("figure svg").length;
// a page drops spaces at the start of a text, so that it touches what it should stand beside
const texts = [...document.querySelectorAll("figure svg text")];
seen.spaced = texts.filter((each) => each.textContent.startsWith(" ")).length;
// what has no fill of its own is black, which is hollow on a dark page
seen.black = [...document.querySelectorAll("figure svg *")].filter((each) =>
  !each.closest("defs, clipPath") && getComputedStyle(each).fill === "rgb(0, 0, 0)").length;
seen.raw = (document.body.innerText.match(/`/g) || []).length;
seen.images = document.querySelectorAll("figure img").length;
const reached = [...document.querySelectorAll("button, input, select, a[href], summary, [tabindex]")];
seen.unreachable = reached.filter((each) => each.tabIndex < 0 && !each.closest(".js-plotly-plot")).length;
"""
PAGES = ("counterfactual", "plan", "train", "crosscheck")


def _counterfactual(folder: Path) -> Path:
    folder.mkdir()
    trace, phases = write_observed(folder, lengths())
    replay = replay_of(observe(trace, phases, Options()), GIVEN, folder / OBSERVED_TRACE, ["static:2"])
    counterfactual(replay, folder / "out", 3, 3.0, lambda *_: None)
    present(folder / "out", Console(quiet=True))
    return folder / "out/counterfactual.html"


def _plan(folder: Path) -> Path:
    folder.mkdir()
    write_comparison(folder)
    write_plan(folder, files())
    present(folder, Console(quiet=True))
    return folder / "report.html"


def _train(folder: Path) -> Path:
    write_training(folder)
    CliRunner().invoke(report, ["train", str(folder)], catch_exceptions=False)
    return folder / "train.html"


def _crosscheck(folder: Path) -> Path:
    folder.mkdir()
    calibration = write_calibration(folder / "calibration.json")
    measured = write_measured(folder / "measured", calibration, {"none": 1.0, "static:2": 1.1})
    simulate_replay(measured, calibration, folder / "simulated")
    arguments = ["crosscheck", str(measured), "--simulated", str(folder / "simulated")]
    CliRunner().invoke(report, arguments, catch_exceptions=False)
    return measured / "crosscheck.html"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], dict[str, Any]]:
    """Open each page in a frame of each width, and return what each saw."""
    root = tmp_path_factory.mktemp("pages")
    told = []
    makers = (_counterfactual, _plan, _train, _crosscheck)
    for name, maker in zip(PAGES, makers, strict=True):
        shutil.copy(maker(root / name), root / f"{name}.html")
        using(root / f"{name}.html", f"used-{name}.html", LOOK.replace("NAME", name))
        told += opened(root, [(f"used-{name}.html", width) for width in WIDTHS])
    return {(one["page"], one["width"]): one for one in told}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_and_fits(seen: dict[tuple[str, int], dict[str, Any]], name: str, width: int) -> None:
    told = seen[name, width]
    assert told["wrong"] == []
    assert told["overflow"] <= 0
    assert told["pictures"] > 0
    assert (told["spaced"], told["black"], told["raw"]) == (0, 0, 0)
    assert told["images"] == 0, "a picture that the page cannot colour"
    assert told["unreachable"] == 0


@pytest.mark.skipif(AXE is None, reason="axe-core-python is not installed")
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wrong_for_readers_with_aids(
    seen: dict[tuple[str, int], dict[str, Any]], name: str
) -> None:
    for width in WIDTHS:
        assert (seen[name, width]["axe_light"], seen[name, width]["axe_dark"]) == ([], [])
