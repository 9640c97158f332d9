"""What is said of long work where there is no terminal."""

from time import sleep

import pytest

from tlt.commands import progress as module
from tlt.commands.progress import progress


def test_work_that_shows_nothing_is_told_of(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.01)
    told = ""
    with progress("working", total=4):
        for _ in range(2000):
            told += capfd.readouterr().err
            if told:
                break
            sleep(0.01)
    assert told.startswith("working: 0 of 4 (0%), after ")
