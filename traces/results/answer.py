"""What a study answers, answer.json: written once, and read by the terminal, the page and scripts.

Policies are compared by the seconds of RL steps for each trained response token: a schedule that puts long
responses off, or throws tokens away, trains on others than the baseline in as many steps. Where all train on
the same responses that order is the one of the steps' seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from tlt.traces.common.intervals import Estimate
from tlt.traces.common.regret import Regrets
from tlt.traces.runs.runfolder import FORMAT_VERSION, read_struct

ANSWER = "answer.json"
LEFT_BEHIND = 0.1  # of the trained responses, under way or put off at the end: more is not ranked


def unranked(clairvoyant: bool, left_behind: int, unsettled: bool) -> str:
    """Return why what was simulated cannot be ranked; empty: it can."""
    if clairvoyant:
        return "it knows lengths in advance: nobody can run it"
    if unsettled:
        return f"{left_behind:,} responses are under way or put off at its end: give more steps"
    return ""


Unit = Literal["s a step", "s a million trained tokens", "USD a step"]


class PolicyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One policy over all simulated steps. Savings are over the baseline; no price, no money.

    `figure` is what the ranking goes by, in the answer's unit. Steps and rollouts are seconds as if every
    step trained on as many tokens as the reference's.
    """

    policy: str
    rank: int  # 1 is the fastest; 0: not ranked
    unranked: str = ""  # why it is not; empty: it is
    figure: float
    step_s: float
    rollout_s: float
    token_factor: float  # of its steps as simulated
    trained_tokens: float  # a step, as simulated
    speedup: Estimate  # of the figure, over the baseline's
    gpu_hours: float
    idle_share: float
    idle_gpu_hours: float
    saved_gpu_hours: Estimate
    saved_usd: Estimate | None
    on_policy: str
    keeps_order: bool
    staleness_mean: float  # policy updates between the begin of a response and its training
    staleness_max: int
    wasted_share: float  # of the response tokens that were generated
    left_behind: int  # responses under way or put off at the end
    unsettled: bool  # it leaves too much behind to be ranked
    clairvoyant: bool  # it knows lengths in advance: nobody can run it


class Ceiling(msgspec.Struct, frozen=True):
    """A step time that is not undercut. `speedup` is the baseline's mean step over it."""

    words: str
    seconds: float
    speedup: float
    in_order: bool = False  # holds for schedules alone that train each step on its own responses, in turn


class AcceptanceRange(msgspec.Struct, frozen=True):
    """What acceptance does to the gain of the best policy, where it was assumed.

    low and high: the gain where acceptance is off by what is assumed of it, at 95 %. first_accepted is the
    chance of the first draft that was taken, and break_even the one at which nothing is gained; None: not in
    the range that was simulated.
    """

    low: float
    high: float
    first_accepted: float
    break_even: float | None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. `gain` is the best over the baseline; 1 means no difference.

    `recommended` is the best policy only if its gain's interval lies above 1, and the baseline otherwise.
    `sentence` is the answer in words, beginning with the headline; `covers` says what its intervals rest on.
    """

    format_version: int = FORMAT_VERSION
    unit: Unit
    by_token: bool  # some policy trains on other responses than the baseline
    designs: bool = False  # the policies are designs of a plan, on clusters that differ
    steps: int
    baseline: str
    best: str
    runner_up: str | None
    recommended: str
    is_gain: bool
    gain: Estimate
    regrets: Regrets | None  # of the recommended policy among the ranked ones; None: there is no other
    policies: tuple[PolicyAnswer, ...]  # the baseline first
    acceptance: AcceptanceRange | None = None  # None: it was measured, or nothing that is best drafts
    ceilings: tuple[Ceiling, ...] = ()
    headline: str  # the first of what the sentence says
    sentence: str
    covers: str = ""
    ceiling: str = ""  # how far schedules could go, where that is known

    @property
    def rest(self) -> str:
        """What the sentence says after the headline."""
        return self.sentence.removeprefix(self.headline).strip()

    def of(self, policy: str) -> PolicyAnswer:
        """Return one policy, as it was named."""
        return next(each for each in self.policies if each.policy == policy)


def read_answer(folder: Path) -> Answer | None:
    """Read answer.json; None if the folder has none. Raises InputError if it is not of that form."""
    path = folder / ANSWER
    return read_struct(path, Answer) if path.is_file() else None
