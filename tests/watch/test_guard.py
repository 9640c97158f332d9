"""Six faults of a live job: found within three steps, and none where there is none."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

from tests.watch.live_jobs import FAULTS, FakeJob, FakeMetrics, step_times
from tlt.traces.doctor.base import Limits
from tlt.traces.watch.folder import follow_folder
from tlt.traces.watch.guard import Guard, Status, is_problem
from tlt.traces.watch.job import LiveJob
from tlt.traces.watch.metrics import LiveMetrics
from tltsched.errors import InputError

BY = {
    "acceptance 0 after sleep": {"acceptance-none"},
    "drafter never updated": {"drafter-age"},
    "wrong K": {"break-even-calibrated"},
    "graph fall-back": {"graph-fallback", "slower-engine-steps"},
    "starving engine": {"starving"},
    "preemption storm": {"preemption-storm"},
}
LIMITS = Limits(drafter_age_steps=2, step_times=lambda _drafts, _most: step_times(), calibration="of the job")


def watched(job: FakeJob, folder: Path, steps: int) -> list[Status]:
    """Return what the guard says after each step of a job."""
    guard, source, statuses = Guard(LIMITS), LiveJob(folder), []
    for _ in range(steps):
        job.live()
        job.write(folder)
        subject = source.read()
        assert subject is not None
        statuses.append(guard.look(subject))
    return statuses


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_within_three_steps(fault: str, tmp_path: Path) -> None:
    job = FakeJob(1, fault, begins=2)
    statuses = watched(job, tmp_path / "job", 5)
    before = [finding.check for status in statuses[:2] for finding in status.findings]
    assert before == []
    found = {finding.check for status in statuses[2:] for finding in status.findings if is_problem(finding)}
    assert found >= BY[fault]
    told = [finding.check for status in statuses for finding in status.new]
    assert len(told) == len(set(told))  # once


def check_clean(seed: int, folder: Path) -> None:
    statuses = watched(FakeJob(100 + seed), folder, 3)
    assert [finding for status in statuses for finding in status.findings] == []
    assert "acceptance length" in statuses[-1].text


def test_a_clean_run_raises_nothing(tmp_path: Path) -> None:
    check_clean(0, tmp_path / "job")


@pytest.mark.slow
def test_twenty_clean_runs_raise_nothing(tmp_path: Path) -> None:
    for seed in range(20):
        check_clean(seed, tmp_path / f"job{seed}")


def test_steps_that_are_no_longer_looked_at_are_forgotten(tmp_path: Path) -> None:
    job, source = FakeJob(2), LiveJob(tmp_path / "job")
    for _ in range(26):
        job.live()
        job.write(tmp_path / "job")
    subject = source.read()
    assert subject is not None
    run = subject.members[0].run
    assert run is not None
    assert run.steps["step"].tolist() == list(range(14, 26))
    job.live()
    job.write(tmp_path / "job")
    assert Guard(LIMITS).look(source.read() or subject).step == 26


def test_a_torn_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    job, source = FakeJob(3), follow_folder(tmp_path / "job")
    job.live()
    job.write(tmp_path / "job")
    path = tmp_path / "job" / "engines" / "0001" / "facts.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    assert source.read() is not None
    path.write_bytes(content)
    assert source.read() is not None
    assert source.changed
    source.read()
    assert not source.changed


METRIC_FAULTS = [fault for fault in FAULTS if fault != "drafter never updated"]  # metrics do not tell


def scraped(fault: str, seed: int, readings: int) -> tuple[list[Status], int]:
    """Return statuses of readings a second apart, and the number of those before the fault began."""
    fake = FakeMetrics(FakeJob(seed, fault, begins=3))
    source = LiveMetrics(("http://h/0", "http://h/1"), fake.get, lambda: fake.t_s)
    guard, statuses, clean = Guard(LIMITS), [], 0
    for _ in range(readings):
        at_fault = fake.advance(0.5)
        subject = source.read()
        if subject is not None and source.changed:
            statuses.append(guard.look(subject))
            clean += not at_fault
    return statuses, clean


@pytest.mark.parametrize(
    "fault", [METRIC_FAULTS[0], *(pytest.param(each, marks=pytest.mark.slow) for each in METRIC_FAULTS[1:])]
)
def test_metrics_alone_show_it(fault: str) -> None:
    statuses, clean = scraped(fault, 1, 62)
    assert clean > 3
    assert [
        finding.check for status in statuses[:clean] for finding in status.findings if is_problem(finding)
    ] == []
    found = {
        finding.check for status in statuses[clean:] for finding in status.findings if is_problem(finding)
    }
    assert found & BY[fault]


def test_broken_metrics_raise_nothing_but_input_errors() -> None:
    rng = random.Random(0)  # noqa: S311 -- what breaks
    values = ("NaN", "+Inf", "-Inf", "1e308", "-5", "x", "1e18", "")
    for _ in range(3):
        fake = FakeMetrics(FakeJob(1))

        def broken(_url: str, fake: FakeMetrics = fake) -> bytes:
            fake.advance(0.5)
            lines = fake.get("http://h/0").decode().splitlines()
            for _ in range(4):
                place = rng.randrange(len(lines))
                name = lines[place].rpartition(" ")[0]
                lines[place] = rng.choice(
                    [f"{name} {rng.choice(values)}", name[: len(name) // 2], name + name]
                )
            return "\n".join(lines).encode()

        source, guard = LiveMetrics(("http://h/0",), broken, lambda fake=fake: fake.t_s), Guard(LIMITS)
        for _ in range(6):
            with suppress(InputError):
                subject = source.read()
                if subject is not None:
                    guard.look(subject)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_metrics_of_a_clean_run_raise_no_problem(seed: int) -> None:
    statuses, _ = scraped("", 200 + seed, 40)
    assert [finding.found for status in statuses for finding in status.findings if is_problem(finding)] == []
