"""Whatever fails in the plugin: the engine goes on by its own choice, and one line says why."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.plugin.fake_engine import engine, run
from tlt import plugin
from tlt.plugin import install
from tlt.plugin.settings import Settings, StepTimesSettings, read_settings
from tlt.plugin.versions import engine_version
from tlt.plugin.writer import Writer
from tlt.traces.live.engines import read_engines
from tlt.traces.live.run_folder import collect
from tltsched.errors import InputError

LENGTHS = (6, 6, 9, 9, 30, 30)
TABLE = "vllm_table:1-2=1+3-8=2"


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("tlt:")]


def broken(observer: Any) -> None:
    def choose(*_args: object) -> None:
        raise ZeroDivisionError("a policy that divides by the drafts of nobody")

    observer._deciding[0].scheduler._scheduler.policy.choose = choose


def full(observer: Any) -> None:
    class Full:
        def write(self, _block: bytes) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            """Nothing is open."""

    for file in observer._writer._files.values():
        file.close()
    observer._writer._files = {name: Full() for name in observer._writer._files}


def killed(observer: Any) -> None:
    observer._writer._lines.put(("", b""))
    observer._writer._thread.join(5.0)


@pytest.mark.parametrize(
    ("harm", "words"),
    [(broken, "ZeroDivisionError"), (full, "No space left"), (killed, "has ended")],
)
def test_the_engine_goes_on_by_its_own_choice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: Any, words: str
) -> None:
    scheduler = engine(Settings(out=str(tmp_path), mode="control", policy=TABLE), k=4)
    writer = scheduler._tlt._writer

    def between(step: int) -> None:
        if step == 4:
            harm(scheduler._tlt)
        if step == 5 and harm is not broken:
            writer._thread.join(5.0)  # its next line fails, or has failed

    run(scheduler, LENGTHS, between=between)
    run(scheduler, LENGTHS, first=8)
    assert not scheduler.requests  # none is lost
    assert scheduler._tlt is None
    assert 4 in scheduler.planned_ks  # the engine's own
    (line,) = lines(capsys)
    assert words in line
    assert "decides for itself" in line
    scheduler.shutdown()


def test_a_folder_that_is_gone_stops_the_plugin_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduler = engine(Settings(out=str(tmp_path / "job")), k=4)
    writer = scheduler._tlt._writer

    def between(step: int) -> None:
        if step == 2:
            shutil.rmtree(tmp_path / "job")
        if step == 4:
            writer._thread.join(5.0)

    run(scheduler, LENGTHS, between=between)
    assert not scheduler.requests
    (line,) = lines(capsys)
    assert "is gone" in line


def test_a_fault_stands_in_the_run_folder(tmp_path: Path) -> None:
    scheduler = engine(Settings(out=str(tmp_path), mode="control", policy=TABLE), k=4)
    run(scheduler, LENGTHS, between=lambda step: broken(scheduler._tlt) if step == 2 else None)
    (log,) = read_engines(tmp_path)
    (fault,) = log.faults
    assert "ZeroDivisionError" in fault.text
    assert any("went on by its own choice" in warning for warning in collect(tmp_path).warnings)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ('mode = "drive"\nout = "x"', "drive"),
        ("mode = ", "Invalid value"),
        ('out = "x"\npolcy = "none"', "polcy"),
        ('mode = "watch"', "out"),
        (None, "No such file"),
    ],
)
def test_wrong_settings_are_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    written: str | None, words: str,
) -> None:  # fmt: skip
    path = tmp_path / "tlt.toml"
    if written is not None:
        path.write_text(written)
    monkeypatch.setenv(plugin.SETTINGS, str(path))
    monkeypatch.setenv(plugin.SAID, "")
    plugin.register()
    plugin.register()  # as the engine's own process does, after the one that started it
    (line,) = lines(capsys)
    assert words in line
    assert "decides for itself" in line


def test_without_the_variable_nothing_happens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(plugin.SETTINGS, raising=False)
    plugin.register()
    assert not lines(capsys)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"policy": "static:8"}, "up to 4"),
        ({"policy": "tlt"}, "chains"),
        ({"policy": "nonsense"}, "nonsense"),
        ({"policy": "goodput:off+4", "step_times": StepTimesSettings(source="/nowhere")}, "/nowhere"),
    ],
)
def test_a_policy_that_cannot_be_followed_leaves_the_engine_watched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: dict[str, Any], words: str
) -> None:
    scheduler = engine(Settings(out=str(tmp_path), mode="control", **more), k=4)
    run(scheduler, LENGTHS)
    scheduler.shutdown()
    assert set(scheduler.planned_ks) == {4}
    (line,) = lines(capsys)
    assert words in line
    assert "is watched" in line
    assert collect(tmp_path).policy == "static:4"


def test_ranks_of_one_engine_must_draft_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scheduler = engine(Settings(out=str(tmp_path), mode="control", policy="static:2"), k=4, dp=2)
    run(scheduler, LENGTHS)
    scheduler.shutdown()
    assert set(scheduler.planned_ks) == {4}
    assert "data parallelism" in lines(capsys)[0]


def test_a_table_that_is_there_for_its_graphs_decides_nothing(tmp_path: Path) -> None:
    told = {install.OURS: {"own_k": 3, "configured": False, "table": True}}
    scheduler = engine(
        Settings(out=str(tmp_path), mode="control", policy="tlt"), k=4, table=[0, 0, 1, 2, 4, 4, 4, 4, 4],
        additional_config=told,
    )  # fmt: skip
    run(scheduler, LENGTHS)
    scheduler.shutdown()
    assert set(scheduler.planned_ks) == {3}


def test_another_version_is_refused() -> None:
    with pytest.raises(InputError, match=r"0\.23\.0"):
        engine_version("0.23.0")
    with pytest.raises(InputError, match=r"0\.33\.1"):
        engine_version("0.33.1")
    assert engine_version("0.25.1") is not None


def test_two_engines_that_start_at_once_get_two_folders(tmp_path: Path) -> None:
    found: list[int] = []

    def start() -> None:
        writer = Writer(tmp_path)
        found.append(writer.number)
        writer.close()

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(8))


def test_folders_count_from_the_settings_file(tmp_path: Path) -> None:
    (tmp_path / "tlt.toml").write_text('out = "job"\nstep_times.source = "times.json"\n')
    read = read_settings(tmp_path / "tlt.toml")
    assert read.out == str(tmp_path / "job")
    assert read.step_times.source == str(tmp_path / "times.json")
