"""What a check of the doctor is, what it finds, and what it may be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from tlt.traces.doctor.subject import Member, Subject
from tltsched.draft_config import DraftConfig
from tltsched.step_times import StepTimeTable

Severity = Literal["problem", "notice"]

FEW_RESPONSES = 20  # shares of fewer are told, but no problem is made of them


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that looks wrong. `found` holds the figures, `source` says which rows they come from."""

    check: str
    severity: Severity
    policy: str
    found: str
    why: str
    todo: str
    source: str


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """What a check returns: a finding without the names that the doctor knows already."""

    severity: Severity
    found: str
    why: str
    todo: str
    source: str


class CannotRunError(Exception):
    """A check lacks what it needs; the text says what. No user sees the error itself."""


class StepTimes(Protocol):
    """Gives calibrated engine step times; raises InputError for draft configurations it cannot time."""

    def __call__(self, draft_configs: tuple[DraftConfig, ...], max_requests: int) -> StepTimeTable:
        """Return the times of these draft configurations up to a batch."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a user states.

    break_even: acceptance length with bonus from which on speculation pays; None: not stated.
    step_times: calibrated times to find it with, and `calibration`, their name.
    drafter_age_steps: policy updates that a drafter may be behind. staleness_steps: the same for a response.
    """

    break_even: float | None = None
    step_times: StepTimes | None = None
    calibration: str = ""
    drafter_age_steps: int = 10
    staleness_steps: int = 4


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check. `examine` returns signs (none: nothing is wrong) or raises CannotRunError."""

    name: str
    looks_for: str
    examine: Callable[[Member, Subject, Limits], list[Sign]]
    once: bool = False  # for the subject as a whole: it is called with the first policy


def shares_are_few(responses: int) -> bool:
    """Return whether shares of so many responses say little."""
    return responses < FEW_RESPONSES


def grade(value: float, notice: float, problem: float, few: bool = False) -> Severity | None:
    """Return the severity of a value by its two thresholds; None below both."""
    if value >= problem and not few:
        return "problem"
    return "notice" if value >= notice else None
