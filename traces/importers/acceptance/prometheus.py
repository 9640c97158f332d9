"""Counters of vLLM and SGLang as a Prometheus endpoint gives them, one scrape or several in a row.

A counter is one line a series (name and labels), since its engine began. Engines and processes are series of
their own and add up; the same series again is a later scrape: its last value counts, and what it had before
it fell, since an engine that begins again counts from 0. `_created` lines are times and are left out.
"""

from __future__ import annotations

import re
from collections import defaultdict

from tlt.traces.importers.acceptance.counted import Counted
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
Series = tuple[tuple[str, str], ...]


class Scrapes:
    """Takes lines; `counted` is what the series add up to."""

    def __init__(self) -> None:
        self.last: dict[tuple[str, Series], float] = {}
        self.before: dict[tuple[str, Series], float] = defaultdict(float)  # of earlier lives of the engine

    def take(self, line: Line) -> None:
        """Read one line; raises InputError for more series than an engine has."""
        if b"spec_" not in line.text or line.text.startswith(b"#"):
            return
        found = _SAMPLE.match(line.text.decode("utf-8", "replace").strip())
        if found is None:
            return
        name = found[1].removesuffix("_total")
        value = number_in(found[3])
        if name not in WANTED or value is None or value < 0:
            return
        key = (name, tuple(sorted(_LABEL.findall(found[2] or ""))))
        if key not in self.last and len(self.last) >= MOST_SERIES:
            raise InputError("series of counters", f"over {MOST_SERIES:,}", f"{MOST_SERIES:,}", "give fewer")
        earlier = self.last.get(key)
        if earlier is not None and value < earlier and name != LENGTH:
            self.before[key] += earlier
        self.last[key] = value

    def counted(self, source: str) -> list[tuple[str, str, list[Counted]]]:
        """Return (engine, what weights are, counts by engine); raises InputError for several models."""
        models = {label[1] for _, labels in self.last for label in labels if label[0] == "model_name"}
        if len(models) > 1:
            raise InputError(
                f"models in {source}", ", ".join(sorted(models)[:5]), "one model",
                "acceptance of different models does not add up: give the lines of one",
            )  # fmt: skip
        found = []
        vllm = [counted for one in self._engines() if (counted := _of_engine(one)) is not None]
        if vllm:
            found.append(("vLLM metrics", "", vllm))
        lengths = [value for (name, _), value in self.last.items() if name == LENGTH and value >= 1]
        if lengths:
            equal = [Counted(cycles=1.0, accepted=length - 1) for length in lengths]
            found.append(("SGLang metrics", "engines count alike", equal))
        return found

    def _engines(self) -> list[dict[tuple[str, int], float]]:
        """Return the counts of each engine by (name, position); processes of an engine are added."""
        engines: dict[str, dict[tuple[str, int], float]] = defaultdict(lambda: defaultdict(float))
        for (name, labels), value in self.last.items():
            if name == LENGTH:
                continue
            by_name = dict(labels)
            position = by_name.get("position", "0")
            if not (position.isascii() and position.isdigit() and len(position) < 4):
                continue
            where = ",".join(by_name.get(label, "") for label in ("instance", "pod", "engine"))
            engines[where][name, int(position)] += value + self.before[name, labels]
        return list(engines.values())


def _of_engine(counts: dict[tuple[str, int], float]) -> Counted | None:
    drafts, drafted, accepted = (counts.get((name, 0), 0.0) for name in (DRAFTS, DRAFTED, ACCEPTED))
    if drafts <= 0:
        return None
    positions = sorted(position for name, position in counts if name == BY_POSITION)
    survival = tuple(counts[BY_POSITION, position] / drafts for position in positions)
    depth = len(survival) or (round(drafted / drafts) if drafted else None)
    return Counted(
        cycles=drafts, accepted=accepted / drafts, depth=depth, by_position=survival,
        drafted=drafted / drafts if drafted else None,
    )  # fmt: skip
