"""Published results: the quickest point the published way, and the table follows from its points."""

from __future__ import annotations

import msgspec
import pytest

from evidence import published_results as published
from evidence.published_cases import FACTS
from evidence.recording import HERE, PROJECT, load_all


@pytest.mark.parametrize("case_id", ["mtp-h20", "nemo-rl-step"])
def test_the_direction_is_the_published_one(case_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)  # the settings name files from the root of the project
    case = next(case for case in published.CASES if case.id == case_id)
    figure, right = published.estimate(case, published.points_of(case))
    assert right
    assert figure.interval is not None
    assert figure.interval[0] <= figure.value <= figure.interval[1]


def test_the_table_follows_from_the_points() -> None:
    lines = (HERE / published.POINTS).read_bytes().splitlines()
    points = [msgspec.json.decode(line) for line in lines]
    assert {row["case"] for row in points} == {case.id for case in published.CASES}
    assert (HERE / "published_results.md").read_text(encoding="utf-8") == published.table(points)


def test_one_rule_says_what_is_published_well_enough() -> None:
    for case in published.CASES:
        assert set(case.lacks) <= set(FACTS)
        assert case.missing  # something is always left to say
        assert case.set_up_well == ("yes; not stated" in published.table_setup(case))
    # lengths that were scaled to the seconds of the source's own baseline pin it, whoever's they are
    scaled = [case for case in published.CASES if case.settings in ("verl-async", "nemo-rl")]
    assert len(scaled) == 4
    assert all(case.set_up_well for case in scaled)
    figures = load_all(HERE)["published_results"].value
    assert figures["setup published well enough"] == len(scaled)


def test_errors_are_distances_from_the_published_range() -> None:
    case = next(case for case in published.CASES if case.published[0] != case.published[1])
    low, high = case.published
    assert published.error_of(case, low) == published.error_of(case, high) == 0.0
    assert published.error_of(case, low / 2) == pytest.approx(-0.5)
    assert published.error_of(case, 2 * high) == pytest.approx(1.0)


def test_every_setup_file_is_used() -> None:
    files = {path.stem for path in published.PUBLISHED.glob("*.toml")}
    assert files == {case.settings for case in published.CASES}
