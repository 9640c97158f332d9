"""Counters of vLLM and SGLang as a Prometheus endpoint gives them: one scrape, or several in a row.

A counter is one line a series (name and labels), since its engine began. Engines and processes are series of
their own and add up. A series that is there again begins another scrape: of the same engine if it was made at
the same time (`_created`, or process_start_time_seconds), so that its last value counts, else of another one.
Where neither is written, a value that fell is of an engine that began again from 0.
"""

from __future__ import annotations

import re
from collections import defaultdict

from tlt.traces.importers.acceptance.counted import Counted, depth_of
from tlt.traces.importers.reading.lines import Line
from tlt.traces.importers.reading.values import number_in
from tltsched.errors import InputError

MOST_SERIES = 100_000
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?[\d.]+)?\s*(?:#.*)?$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
DRAFTS, DRAFTED, ACCEPTED, BY_POSITION = (
    f"vllm:spec_decode_num_{name}"
    for name in ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
)
LENGTH = "sglang:spec_accept_length"
WANTED = (DRAFTS, DRAFTED, ACCEPTED, BY_POSITION, LENGTH)
PROCESS = "process_start_time_seconds"
MARKS = (b"spec_", PROCESS.encode())
Key = tuple[str, tuple[tuple[str, str], ...]]  # name and labels


def sample_of(line: bytes) -> tuple[str, dict[str, str], float] | None:
    """Return name, labels and value of a line of an exposition; None for one that holds none."""
    found = _SAMPLE.match(line.decode("utf-8", "replace").strip())
    value = number_in(found[3]) if found else None
    if found is None or value is None:
        return None
    return found[1], dict(_LABEL.findall(found[2] or "")), value


class Scrapes:
    """Takes lines; `counted` is what the series add up to."""

    def __init__(self) -> None:
        self.at_hand: dict[Key, float] = {}  # of the scrape that is being read
        self.made: dict[Key, float] = {}
        self.begun: float | None = None
        self.total: dict[tuple[Key, float | None], float] = {}  # by series and when it was made
        self.before: dict[Key, float] = defaultdict(float)  # of earlier lives, where that is not written

    def take(self, line: Line) -> None:
        """Read one line; raises InputError for more series than an engine has."""
        if not any(mark in line.text for mark in MARKS) or line.text.startswith(b"#"):
            return
        found = sample_of(line.text)
        if found is None or found[2] < 0:
            return
        written, labels, value = found
        if written == PROCESS:
            if self.begun is not None:
                self._close()
            self.begun = value
            return
        name, of_time = written.removesuffix("_total"), written.endswith("_created")
        name = name.removesuffix("_created") if of_time else name
        if name not in WANTED:
            return
        key = (name, tuple(sorted(labels.items())))
        if of_time:
            self.made[key] = value
            return
        if key in self.at_hand:
            self._close()
        self.at_hand[key] = value
        if len(self.at_hand) + len(self.total) > MOST_SERIES:
            raise InputError("series of counters", f"over {MOST_SERIES:,}", f"{MOST_SERIES:,}", "give fewer")

    def _close(self) -> None:
        """Count what the scrape at hand says."""
        made = min(self.made.values(), default=self.begun)
        for key, value in self.at_hand.items():
            earlier = self.total.get((key, made))
            if made is None and earlier is not None and value < earlier and key[0] != LENGTH:
                self.before[key] += earlier
            self.total[key, made] = value
        self.at_hand, self.made, self.begun = {}, {}, None

    def _series(self) -> list[tuple[Key, float]]:
        """Return each series with what it counted in all."""
        self._close()
        return [(key, value + (self.before[key] if made is None else 0.0))
                for (key, made), value in self.total.items()]  # fmt: skip

    def counted(self, source: str) -> list[tuple[str, str, list[Counted]]]:
        """Return (engine, what weights are, counts by engine); raises InputError for several models."""
        series = self._series()
        models = {label[1] for (_, labels), _ in series for label in labels if label[0] == "model_name"}
        if len(models) > 1:
            raise InputError(
                f"models in {source}", ", ".join(sorted(models)[:5]), "one model",
                "acceptance of different models does not add up: give the lines of one",
            )  # fmt: skip
        found = []
        vllm = [counted for one in _engines(series) if (counted := _of_engine(one)) is not None]
        if vllm:
            found.append(("vLLM metrics", "", vllm))
        lengths = [value for (name, _), value in series if name == LENGTH and value >= 1]
        if lengths:
            equal = [Counted(verifications=1.0, accepted=length - 1) for length in lengths]
            found.append(("SGLang metrics", "engines count alike", equal))
        return found


def _engines(series: list[tuple[Key, float]]) -> list[dict[tuple[str, int], float]]:
    """Return the counts of each engine by (name, position); processes of an engine are added."""
    engines: dict[str, dict[tuple[str, int], float]] = defaultdict(lambda: defaultdict(float))
    for (name, labels), value in series:
        by_name = dict(labels)
        position = by_name.get("position", "0")
        if name == LENGTH or not (position.isascii() and position.isdigit() and len(position) < 4):
            continue
        where = ",".join(by_name.get(label, "") for label in ("instance", "pod", "engine"))
        engines[where][name, int(position)] += value
    return list(engines.values())


def _of_engine(counts: dict[tuple[str, int], float]) -> Counted | None:
    drafts, drafted, accepted = (counts.get((name, 0), 0.0) for name in (DRAFTS, DRAFTED, ACCEPTED))
    if drafts <= 0:
        return None
    positions = sorted(position for name, position in counts if name == BY_POSITION)
    survival = tuple(counts[BY_POSITION, position] / drafts for position in positions)
    depth = len(survival) or depth_of(drafted, drafts)
    return Counted(
        verifications=drafts, accepted=accepted / drafts, depth=depth, by_position=survival,
        drafted=drafted / drafts if drafted else None,
    )  # fmt: skip
