"""What an import did: rows, what was left out and where first, and what the format does not hold."""

from __future__ import annotations

import msgspec

from tlt.traces.importers.base import Lengths

MOST_REASONS = 100  # a file made to have countless reasons must not fill the memory
OTHER_REASONS = "other reasons"


class Left(msgspec.Struct, kw_only=True):
    """Things left out for one reason. `first` is file:line of the first of them, `excerpt` its beginning."""

    reason: str
    count: int
    first: str
    excerpt: str


class Staleness(msgspec.Struct, kw_only=True, frozen=True):
    """Policy updates between the first and the last token, over the responses that state both."""

    responses: int
    mean: float
    max: int
    spanning_share: float  # of responses that were written with more than one version


class Report(msgspec.Struct, kw_only=True):
    """Facts of one import."""

    format: str
    framework: str
    lengths: Lengths
    source: str
    files: int = 0
    rows: int = 0
    steps: int = 0
    groups: int = 0
    truncated: int = 0
    set_to_cap: int = 0  # re-tokenised lengths above the cap
    sessions: int = 0  # 0: nothing had several turns
    turns: int = 0
    waits: int = 0  # turns that a further one follows
    waits_known: int = 0
    skipped: list[Left] = msgspec.field(default_factory=list)
    files_left_out: list[Left] = msgspec.field(default_factory=list)
    lost: tuple[str, ...] = ()
    notes: list[str] = msgspec.field(default_factory=list)
    staleness: Staleness | None = None

    @property
    def skips(self) -> int:
        """Records that gave no response."""
        return sum(one.count for one in self.skipped)

    def note(self) -> str:
        """Return what the origin of the trace says of this import."""
        done = (
            f"Imported from {self.framework} ({self.format}), lengths {self.lengths}: {self.rows:,} responses"
        )
        done += f", {self.skips:,} records left out." if self.skips else "."
        return " ".join([done, *self.lost, *self.notes])


class Tally:
    """Counts things by reason and keeps the first of each."""

    def __init__(self) -> None:
        self.by_reason: dict[str, Left] = {}

    def add(self, reason: str, place: str, excerpt: str) -> None:
        """Count one thing."""
        if reason not in self.by_reason and len(self.by_reason) >= MOST_REASONS:
            reason = OTHER_REASONS
        left = self.by_reason.get(reason)
        if left is None:
            self.by_reason[reason] = Left(reason=reason, count=1, first=place, excerpt=excerpt)
        else:
            left.count += 1

    def most_first(self) -> list[Left]:
        """Return what was counted, most frequent first."""
        return sorted(self.by_reason.values(), key=lambda left: -left.count)
