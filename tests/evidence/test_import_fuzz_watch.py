"""What the importers' fuzzer stops: a file that blocks or works too long, and none that waits for a core."""

from __future__ import annotations

import signal

import pytest

from evidence.import_fuzz import BLOCKED_S, LIMIT_S, Watch


@pytest.mark.parametrize(
    ("looks_s", "stopped"),
    [((0.5,), True), ((5.0, 10.0, 15.0), False), ((5.0, 5.5), True), ((20.0, LIMIT_S + 1.0), True)],
)
def test_a_file_is_stopped_where_it_does_nothing_or_too_much(
    looks_s: tuple[float, ...], stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processor seconds of the file at each look, one look every two minutes."""
    asked, now_s = [], 100.0
    monkeypatch.setattr(signal, "alarm", asked.append)
    monkeypatch.setattr("time.process_time", lambda: now_s)
    watch = Watch()
    watch.begin()
    for used_s in looks_s[:-1]:
        now_s = 100.0 + used_s
        watch.look()
    now_s = 100.0 + looks_s[-1]
    if stopped:
        with pytest.raises(SystemError, match="at work"):
            watch.look()
    else:
        watch.look()
    assert asked == [BLOCKED_S] * (len(looks_s) + (not stopped))
