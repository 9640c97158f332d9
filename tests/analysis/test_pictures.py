import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.analysis.fake_run import with_summary, write_comparison, write_run
from tlt.analysis.comparison.compare import compare
from tlt.analysis.comparison.drawn.by_step import acceptance_by_step, drafter_age
from tlt.analysis.comparison.drawn.gantt import median_step, sample_causes, step_window_s
from tlt.analysis.comparison.drawn.pictures import draw_all
from tlt.analysis.comparison.drawn.running_requests import running_requests
from tlt.analysis.drawing.figure import CAUSE_COLOURS, INK, PAGE_COLOURS, PAPER, save
from tlt.analysis.drawing.html import TEMPLATES
from tlt.analysis.kstar.pictures import BORDER, HATCH, OFF_COLOUR
from tlt.analysis.load import RunSet, load_run, load_runs
from tlt.traces.runs.runfolder import CAUSES, INTERVAL_COLUMNS, RESPONSE_COLUMNS, STEP_COLUMNS
from tltsched.errors import InputError

NAMES = list(CAUSES)
PNG = b"\x89PNG\r\n\x1a\n"


def _draw(runs: RunSet, step: int | None = None) -> dict[str, bytes]:
    table = compare(runs)
    pictures = draw_all(runs.runs, tuple(row.ledger for row in table.rows), step)
    assert all(picture.title and picture.caption for picture in pictures)
    return {picture.name: picture.png for picture in pictures}


@pytest.mark.slow
def test_all_pictures_of_a_comparison_are_drawn_and_saved(tmp_path: Path) -> None:
    runs = load_runs(write_comparison(tmp_path, steps=4))
    table = compare(runs)
    paths = save(draw_all(runs.runs, tuple(row.ledger for row in table.rows)), tmp_path / "pictures")
    assert sorted(path.stem for path in paths) == ["by_step", "gantt", "ledger", "lengths", "running"]
    for path in paths:
        assert path.read_bytes().startswith(PNG)
        assert path.stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "steps", "requests"), [(1, 1, 1), (1, 2, 3), (64, 2, 2), (2, 400, 2)])
def test_pictures_of_small_and_large_runs(tmp_path: Path, workers: int, steps: int, requests: int) -> None:
    folder = write_run(tmp_path, workers=workers, steps=steps, requests_per_worker=requests)
    assert ("by_step" in _draw(load_runs(folder.path))) == (steps > 1)


@pytest.mark.slow
def test_many_policies_with_strange_names(tmp_path: Path) -> None:
    names = ["$x^2$", "漢字", "a" * 60, "_hidden", *(f"policy {n}" for n in range(6))]
    policies = {name: {"speed": 1 + index / 10} for index, name in enumerate(names)}
    assert len(_draw(load_runs(write_comparison(tmp_path, policies)))) == 5


def test_a_run_of_no_length_is_drawn(tmp_path: Path) -> None:
    folder = write_run(tmp_path, steps=1)
    tables = (RESPONSE_COLUMNS, INTERVAL_COLUMNS, STEP_COLUMNS)
    empty = [pd.DataFrame({name: [] for name in table}).astype(table) for table in tables]
    folder.write(with_summary(folder, response_tokens=0, wall_s=0.0, steps=0), *empty)
    assert sorted(_draw(load_runs(tmp_path))) == ["ledger", "lengths"]


@pytest.mark.slow
def test_steps_that_take_no_time_are_drawn(tmp_path: Path) -> None:
    folder = write_run(tmp_path, steps=2, requests_per_worker=2)
    frames = [folder.responses(), folder.intervals(), folder.steps()]
    for frame in frames:
        times = [name for name in frame.columns if name.endswith("_s")]
        frame[times] = 0.0
    frames[0]["response_tokens"] = 0
    folder.write(with_summary(folder, wall_s=0.0, response_tokens=0), *frames)
    assert len(_draw(load_runs(tmp_path))) == 5


def test_an_unknown_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="0 to 2"):
        _draw(load_runs(write_run(tmp_path).path), step=7)


def test_sampled_causes_follow_the_intervals(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path).path)
    start_s, _, end_s = step_window_s(run, 1)
    times = np.linspace(start_s, end_s, 200, endpoint=False)
    codes = sample_causes(run, times, end_s)
    assert codes.shape == (4, 200)
    for worker in range(4):
        rows = run.intervals[run.intervals["worker"] == worker]
        for at_s, code in zip(times, codes[worker], strict=True):
            row = rows[(rows["start_s"] <= at_s) & (at_s < rows["end_s"])]
            assert NAMES[code] == row["cause"].iloc[0]
    assert (sample_causes(run, np.array([end_s, end_s + 1]), end_s) == -1).all()


def test_median_step_is_the_lower_middle_one(tmp_path: Path) -> None:
    folder = write_run(tmp_path, steps=4, seed=3)
    seconds = folder.steps()["end_s"] - folder.steps()["start_s"]
    assert median_step(load_run(tmp_path)) == int(seconds.sort_values(kind="stable").index[1])


def test_running_requests_count_starts_and_finishes() -> None:
    times, counts = running_requests(np.array([0.0, 0.0, 2.0]), np.array([2.0, 5.0, 3.0]))
    assert times.tolist() == [0, 2, 3, 5]
    assert counts.tolist() == [2, 2, 1, 0]


def test_acceptance_and_age_are_missing_without_a_drafter(tmp_path: Path) -> None:
    drafting = load_run(write_run(tmp_path / "a").path)
    plain = load_run(write_run(tmp_path / "b", speculates=False, trains=False).path)
    assert acceptance_by_step(drafting) == pytest.approx([3.2, 3.284, 3.291], abs=0.01)
    assert drafter_age(drafting).tolist() == [0, 1, 0]
    assert np.isnan(acceptance_by_step(plain)).all()
    assert np.isnan(drafter_age(plain)).all()


def test_every_grey_of_a_picture_follows_the_page_or_lies_on_a_colour() -> None:
    # a grey for white paper is a glare on a dark page, or is not seen there
    stays = {INK, PAPER, *CAUSE_COLOURS.values(), OFF_COLOUR, HATCH, str(BORDER["color"])}
    for path in TEMPLATES.rglob("*.py"):
        for colour in re.findall(r'"(#[0-9a-fA-F]{6})"', path.read_text(encoding="utf-8")):
            red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
            if max(red, green, blue) - min(red, green, blue) <= 8:
                assert colour in PAGE_COLOURS or colour in stays, (path, colour)
