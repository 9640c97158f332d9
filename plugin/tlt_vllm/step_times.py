"""Step times for the policies that need them: out of a file, or measured in the engine's first engine steps.

Measuring, the plugin lets each draft configuration of the policy draft for a few engine steps in turn, and
fits the medians by
    seconds = fixed + drafter * [K > 0] + pass * K + token * batch * (K + 1),  none of them negative:
weights are read once an engine step, the drafter runs K passes, and each token costs its part. Each K keeps
its mean ratio to that law, for kernels and graphs do not grow by the token. The context is not in it, and
batches that did not come by are on the line.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from statistics import median

import msgspec

from tltsched.draft_config import DraftConfig, chain
from tltsched.errors import InputError
from tltsched.step_times import DraftConfigTimes, StepTimeTable

from .facts import STEP_TIMES

SETTLE = 3  # engine steps after a change of K that are left out: drafts of the K before are verified in them
TURN = 8  # engine steps that one K is measured in a row, those left out not counted
BUCKETS = 3  # doublings of the batch to wait for, unless the rollout is over before
LONGEST = 40  # engine steps of each K, over steps_each, after which no other batch is waited for
SWEEPS = 200

Row = tuple[float, float, float, float]


def read_step_times(path: Path, needed: Sequence[DraftConfig]) -> StepTimeTable:
    """Read a table, or a scheduler.json that holds one; raises InputError if it lacks some."""
    try:
        content = msgspec.json.decode(path.read_bytes(), type=dict[str, object])
        table = msgspec.convert(content.get("step_times", content), StepTimeTable)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(
            "step_times.source", f"{path}: {error}", "step times, or a scheduler.json that holds some",
            "write them with `tlt real step-times`",
        ) from None  # fmt: skip
    known = {row.draft_config for row in table.draft_configs}
    missing = [str(draft) for draft in needed if draft not in known]
    if missing:
        raise InputError(
            "step_times.source", f"{path} without {', '.join(missing)}", "times of all that is drafted",
            "write them for this policy with `tlt real step-times`",
        )  # fmt: skip
    return table


class Measuring:
    """Says which K the next engine step is to have, until it has times of all."""

    def __init__(self, draft_configs: Sequence[DraftConfig], steps_each: int, max_running: int) -> None:
        self.k = draft_configs[0].depth
        self.engine_steps = 0  # that were measured
        self._ks = [draft.depth for draft in draft_configs]
        self._turns = cycle(self._ks[1:] + self._ks[:1])
        self._each = steps_each
        self._most = max_running
        self._in_turn = 0
        self._seconds: dict[tuple[int, int], list[float]] = {}  # batch, K

    def came(self, batch: int, k: int, seconds: float, prompts: bool) -> None:
        """Take in an engine step that was planned with `k`, and go on to the next K if its turn is over."""
        if k != self.k or prompts:
            return
        self._in_turn += 1
        if self._in_turn > SETTLE:
            self._seconds.setdefault((batch, k), []).append(seconds)
            self.engine_steps += 1
        if self._in_turn >= SETTLE + TURN:
            self.k, self._in_turn = next(self._turns), 0

    def enough(self, over: bool = False) -> bool:
        """Return whether each K has its engine steps; `over`: no further batch of this rollout will come."""
        counts = dict.fromkeys(self._ks, 0)
        for (_, k), seconds in self._seconds.items():
            counts[k] += len(seconds)
        buckets = {batch.bit_length() for batch, _ in self._seconds}
        waited = over or len(buckets) >= BUCKETS or min(counts.values()) >= LONGEST + self._each
        return min(counts.values()) >= self._each and waited

    def table(self) -> StepTimeTable:
        """Return the times of every draft configuration at every batch."""
        cells = [(batch, k, median(seconds)) for (batch, k), seconds in self._seconds.items()]
        weights = [float(len(seconds)) for seconds in self._seconds.values()]
        law = fit([_terms(batch, k) for batch, k, _ in cells], [s for _, _, s in cells], weights)
        rows = []
        for k in self._ks:
            own = [
                (w, s / _at(law, batch, k))
                for w, (batch, of, s) in zip(weights, cells, strict=True)
                if of == k
            ]
            ratio = sum(w * each for w, each in own) / sum(w for w, _ in own)
            fixed_s = tuple(ratio * _at(law, batch, k) for batch in range(self._most + 1))
            rows.append(DraftConfigTimes(chain(k), fixed_s))
        return StepTimeTable(tuple(rows))


def share(out: Path, table: StepTimeTable) -> StepTimeTable:
    """Return the step times of a job: those of the engine that had them first, for all decide by the same."""
    path = out / STEP_TIMES
    own = out / f"{STEP_TIMES}.{os.getpid()}"
    own.write_bytes(msgspec.json.format(msgspec.json.encode(table), indent=2) + b"\n")
    try:
        os.link(own, path)
    except FileExistsError:
        return msgspec.json.decode(path.read_bytes(), type=StepTimeTable)
    finally:
        own.unlink()
    return table


def fit(rows: Sequence[Row], seconds: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return coefficients >= 0 of least squares of relative errors, by coordinate descent.

    `rows` are (cells, 4) and `weights` count the engine steps of each cell.
    """
    scaled = [[term / s for term in row] for row, s in zip(rows, seconds, strict=True)]
    law = [0.0] * len(rows[0])
    errors = [-1.0] * len(rows)  # predicted / measured - 1
    for _ in range(SWEEPS):
        for j in range(len(law)):
            slope = sum(w * row[j] * e for w, row, e in zip(weights, scaled, errors, strict=True))
            bend = sum(w * row[j] ** 2 for w, row in zip(weights, scaled, strict=True))
            new = max(0.0, law[j] - slope / bend) if bend else 0.0
            if new != law[j]:
                change = new - law[j]
                law[j] = new
                errors = [e + change * row[j] for e, row in zip(errors, scaled, strict=True)]
    return law


def _terms(batch: int, k: int) -> Row:
    return (1.0, float(k > 0), float(k), float(batch * (k + 1)))


def _at(law: Sequence[float], batch: int, k: int) -> float:
    return sum(each * term for each, term in zip(law, _terms(batch, k), strict=True))
