"""What goodput's estimate of acceptance would have predicted on recorded drafts, by request and averaged.

Two readings of real runs. Intervals in which one response ran alone are recorded as they were. For larger
batches the recording has the drafts of each response by bins of its length: engine steps are drawn from the
rate of the bin (modelled), 64 an interval, in the order and with the batch of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq

from evidence.recording import RUNS
from tlt.plugin.requests import bin_of
from tlt.traces.common.arrays import Floats
from tlt.traces.runs.records import RECORDS, read_records
from tlt.traces.runs.request_acceptance import read_acceptance
from tlt.traces.runs.runfolder import RunFolder
from tltsched.draft_config import DraftConfig, chain
from tltsched.events import DecisionEnded, RolloutBegan
from tltsched.policies.base import Outcome
from tltsched.policies.estimators.acceptance import AcceptanceEstimate
from tltsched.policies.estimators.exponents import Exponents, hazard_of, mean_survival
from tltsched.policies.estimators.running import RunningAcceptance
from tltsched.policies.goodput import GoodputConfig

TRAINED = RUNS / "h200-smollm2-train"
MEASURED = RUNS / "h200-smollm2-acceptance"
RUNNING = 64
INTERVAL = 64
BUCKETS = ((1, 1), (2, 4), (5, 8), (9, 16), (17, 32), (33, 64))


class Miss(NamedTuple):
    """Tokens per engine step of a request, predicted less seen, in a batch."""

    batch: int
    by_request: float
    average: float


class Both:
    """The estimate by request and the average over all that ran, told the same."""

    def __init__(self, spread: float, memory_steps: float) -> None:
        config = GoodputConfig()
        ours, average = (
            AcceptanceEstimate(config.acceptance_prior, {}, config.memory_request_steps) for _ in range(2)
        )
        self.ours, self.average = RunningAcceptance(ours, spread, memory_steps), average
        self._spread = spread

    def predicted(self, draft_config: DraftConfig, requests: int) -> tuple[float, float]:
        """Return tokens per engine step as a plain mean over a batch: by request, and averaged."""
        average = self.average.tokens_per_engine_step(draft_config)
        if not len(self.ours.requests):
            return self.ours.population.tokens_per_engine_step(draft_config), average
        whole = Exponents(0.0, self._spread**2).nodes()
        nodes = self.ours.requests.batch(requests).nodes()
        survival = self.ours.population.survival(draft_config.depth)
        return 1 + sum(mean_survival(hazard_of(share, whole), nodes) for share in survival), average

    def observe(self, outcome: Outcome) -> None:
        """Take in an interval that drafted."""
        self.ours.observe(outcome)
        self.average.observe(outcome.draft_config, outcome.request_steps, outcome.shares())


def alone(folder: Path, spread: float, memory_steps: float) -> list[Miss]:
    """Return the misses of a run's intervals in which one response ran alone, the second such one on."""
    workers: dict[str, Both] = {}
    before: dict[str, bool] = {}
    misses = []
    for record in read_records(folder / RECORDS):
        body, owner = record.body, record.owner
        if isinstance(body, RolloutBegan):
            workers.setdefault(owner, Both(spread, memory_steps)).ours.begin_rollout()
            before[owner] = False
        if not isinstance(body, DecisionEnded) or not body.engine_steps or not body.draft_config.depth:
            continue
        single = body.request_steps == body.engine_steps
        accepted = sum(body.accepted_by_position)
        if before[owner] and single and body.engine_steps >= INTERVAL / 2:
            seen = 1 + accepted / body.request_steps
            misses.append(Miss(1, *(each - seen for each in workers[owner].predicted(body.draft_config, 1))))
        told = ((0, body.engine_steps, accepted),) if single else ()  # of more than one it is not recorded
        workers[owner].observe(
            Outcome(
                body.draft_config, body.engine_steps, body.request_steps, body.decode_s,
                body.accepted_by_position, (), told,
            )
        )  # fmt: skip
        before[owner] = single and body.requests == 1
    return misses


class Response(NamedTuple):
    """A recorded response: its length, and accepted drafts per engine step by bin of its length so far."""

    tokens: int
    accepted: dict[int, float]


def responses(folder: Path, draft_config: DraftConfig) -> Iterator[list[Response]]:
    """Yield the responses of each step of a recorded run with drafts by request, in order of their ids."""
    rows = read_acceptance(folder)
    assert rows is not None, "the run has drafts by request"
    rows = rows[rows["draft_config"] == str(draft_config)]
    table = RunFolder(folder).responses()
    for step, of_step in rows.groupby("step"):
        of_lengths = table[table["step"] == step]
        lengths = dict(zip(of_lengths["request"], of_lengths["response_tokens"], strict=True))
        found = []
        for request, bins in of_step.groupby("request"):
            rates = bins["accepted_tokens"] / bins["request_steps"]
            of_bin = {
                bin_of(int(edge)): float(rate) for edge, rate in zip(bins["from_token"], rates, strict=True)
            }
            found.append(Response(int(lengths[request]), of_bin))
        yield found


def drawn(folder: Path, k: int, spread: float, memory_steps: float, seed: int = 3) -> list[Miss]:
    """Return the misses of rollouts in which recorded responses run 64 at a time."""
    config, rng = chain(k), np.random.default_rng(seed)
    counts = np.sum(
        [
            np.array((*record.body.accepted_by_position, record.body.request_steps))
            for record in read_records(folder / RECORDS)
            if isinstance(record.body, DecisionEnded) and record.body.draft_config == config
        ],
        axis=0,
    )
    survival = counts[:-1] / counts[-1]
    both, misses = Both(spread, memory_steps), []
    for waiting in responses(folder, config):
        both.ours.begin_rollout()
        queue = list(enumerate(waiting))
        running: dict[int, int] = {}  # request -> tokens so far
        told = False
        while queue or running:
            while queue and len(running) < RUNNING:
                running[queue.pop(0)[0]] = 1
            outcome = _interval(config, running, waiting, survival, rng)
            if told:
                seen = 1 + sum(outcome.accepted_by_position) / outcome.request_steps
                ran = len(outcome.by_request)
                misses.append(Miss(ran, *(each - seen for each in both.predicted(config, ran))))
            both.observe(outcome)
            told = True
    return misses


def _interval(
    config: DraftConfig,
    running: dict[int, int],
    waiting: list[Response],
    survival: Floats,
    rng: np.random.Generator,
) -> Outcome:
    """Let what runs go on for an interval; takes away what has finished."""
    rows, by_position, finished = [], np.zeros(config.depth, np.int64), []
    for request, position in list(running.items()):
        response = waiting[request]
        of_bin = response.accepted
        rate = of_bin.get(bin_of(position), of_bin[max(of_bin)])
        gained = (rng.random(INTERVAL)[:, None] < _survivals(rate, tuple(survival))[None, :]).cumprod(axis=1)
        tokens = (1 + gained.sum(axis=1)).cumsum() + position
        steps = min(int(np.searchsorted(tokens, response.tokens)) + 1, INTERVAL)
        by_position += gained[:steps].sum(axis=0)
        rows.append((request, steps, int(gained[:steps].sum())))
        running[request] = int(tokens[steps - 1])
        if running[request] >= response.tokens:
            finished.append(request)
            del running[request]
    request_steps = sum(steps for _, steps, _ in rows)
    return Outcome(
        config, INTERVAL, request_steps, 1.0, tuple(by_position.tolist()), tuple(finished), tuple(rows)
    )


@lru_cache(maxsize=100_000)
def _survivals(rate: float, survival: tuple[float, ...]) -> Floats:
    """Return survival ** e with the e that gives so many accepted drafts an engine step, [depth]."""
    base = np.array(survival)
    if rate <= 0.01 or rate >= len(base) - 0.01:
        return np.full(len(base), float(rate > 0.01))
    exponent = brentq(lambda x: float((base ** np.exp(x)).sum()) - rate, -12.0, 6.0)
    return np.asarray(base ** np.exp(exponent), np.float64)


def squares(misses: list[Miss], low: int, high: int) -> dict[str, float]:
    """Return how many misses a bucket of batches has, and their mean square by rule."""
    inside = [miss for miss in misses if low <= miss.batch <= high]
    if not inside:
        return {}
    return {
        "intervals": len(inside),
        "goodput": round(float(np.mean([miss.by_request**2 for miss in inside])), 4),
        "goodput_mean": round(float(np.mean([miss.average**2 for miss in inside])), 4),
        "bias goodput": round(float(np.mean([miss.by_request for miss in inside])), 3),
        "bias goodput_mean": round(float(np.mean([miss.average for miss in inside])), 3),
    }


def table(spread: float, memory_steps: float) -> list[dict[str, Any]]:
    """Return mean squares by bucket of batches, of every recording."""
    rows: list[dict[str, Any]] = []
    parts: list[tuple[str, list[Miss]]] = []
    for kind in ("natural", "forced"):
        folder = TRAINED / kind / "goodput-off-2-3-4-6-online"
        parts.append((f"h200-smollm2-train, {kind}, as recorded", alone(folder, spread, memory_steps)))
    for k in (4, 8):
        misses = drawn(MEASURED / f"static-{k}-frozen", k, spread, memory_steps)
        parts.append((f"h200-smollm2-acceptance, K = {k}, drawn by bin", misses))
    for name, misses in parts:
        for low, high in BUCKETS:
            found = squares(misses, low, high)
            if found:
                batch = f"{low}-{high}" if high > low else str(low)
                rows.append({"recording": name, "batch": batch} | found)
    return rows
