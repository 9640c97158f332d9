"""The clock of a policy that takes turns with others on the same workers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlt.realrun.driver import clock as module
from tlt.realrun.driver.clock import PolicyClock


class Machine:
    """The clock of the machine, set by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    mine = Machine()
    monkeypatch.setattr(module, "perf_counter", mine)
    return mine


def test_it_runs_in_its_own_steps_alone(machine: Machine) -> None:
    clock = PolicyClock(5.0)
    machine.now_s += 70.0  # of others
    assert clock.read() == 5.0
    clock.start()
    machine.now_s += 2.0
    assert clock.read() == 7.0
    clock.stop()
    machine.now_s += 30.0
    assert clock.read() == clock.now_s == 7.0
    clock.start()
    machine.now_s += 0.5
    assert clock.read() == 7.5
    assert clock.origin_s + 7.5 == machine.now_s  # what workers count from


def test_a_report_of_the_future_is_believed_and_time_never_goes_back(machine: Machine) -> None:
    clock = PolicyClock(0.0)
    clock.start()
    machine.now_s += 1.0
    assert clock.read(1.25) == 1.25  # two processors' readings differ by this much
    assert clock.read() == 1.25
    machine.now_s += 1.0
    assert clock.read(1.5) == 2.0


@given(st.lists(st.tuples(st.sampled_from(["start", "stop", "read"]), st.floats(0, 10), st.floats(0, 50))))
def test_readings_never_fall(does: list[tuple[str, float, float]]) -> None:
    machine, clock = Machine(), PolicyClock(0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "perf_counter", machine)
        actions: dict[str, Callable[[float], object]] = {
            "start": lambda _: clock.start(), "stop": lambda _: clock.stop(), "read": clock.read,
        }  # fmt: skip
        before_s = 0.0
        for name, passed_s, reported_s in does:
            machine.now_s += passed_s
            actions[name](reported_s)
            assert clock.now_s >= before_s
            before_s = clock.now_s
