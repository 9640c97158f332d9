"""Engines by their metrics (vLLM's and SGLang's /metrics): what passed between two readings, as a step.

An engine is a URL, or a label `engine` of one that serves several. What metrics do not tell is left out: no
drafter's version, no graphs, no response. The context is that of the tokens in the KV cache.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from tlt.traces.doctor.subject import LIVE_COLUMNS, Member, RunTables, Subject
from tlt.traces.importers.acceptance.prometheus import (
    ACCEPTED,
    BY_POSITION,
    DRAFTED,
    DRAFTS,
    LENGTH,
    sample_of,
)
from tlt.traces.runs.acceptance_counts import POSITION_COLUMNS
from tlt.traces.runs.decision_intervals import DecisionIntervals
from tlt.traces.runs.engine_steps import STRETCH_COLUMNS
from tlt.traces.runs.runfolder import INTERVAL_COLUMNS, RESPONSE_COLUMNS, STEP_COLUMNS, Summary
from tlt.version import VERSION
from tltsched.errors import InputError

KEPT = 60  # readings with work in them: the newest, and what it is held against
MOST_BYTES, PATIENCE_S = 16 << 20, 10.0
RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")
WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
PREEMPTED = ("vllm:num_preemptions", "sglang:num_retracted_reqs")
TOKENS = ("vllm:generation_tokens", "sglang:generation_tokens")
PROMPTS = ("vllm:prompt_tokens", "sglang:prompt_tokens")
ENGINE_STEPS = "vllm:iteration_tokens_total_count"
CACHE, CACHE_INFO = "vllm:kv_cache_usage_perc", "vllm:cache_config_info"
Counts = dict[str, float]
Rows = Sequence[tuple[object, ...]]
Fetch = Callable[[str], bytes]
MOST = 1e15  # what no counter or gauge of an engine reaches


@dataclass(frozen=True)
class Reading:
    """One engine at one time. `counts` is by name; drafts by position are `BY_POSITION/position`."""

    t_s: float
    counts: Counts


def fetch(url: str) -> bytes:
    """Return what a metrics URL says; raises InputError if it says nothing."""
    if not url.startswith(("http://", "https://")):
        raise InputError("URL", url, "http:// or https://", "give the engine's address with /metrics")
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:  # noqa: S310 -- checked above
            return bytes(answer.read(MOST_BYTES))
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise InputError(
            "URL", f"{url}: {error}", "an engine that answers", "check address and port"
        ) from None


class LiveMetrics:
    """Engines behind some URLs."""

    def __init__(
        self, urls: Sequence[str], get: Fetch = fetch, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`get` reads a URL, `clock` tells seconds."""
        self._urls, self._get, self._clock = tuple(urls), get, clock
        self._before: dict[str, Reading] = {}
        self._windows: list[list[tuple[Reading, Reading]]] = []  # by reading: (before, after) of each engine
        self._numbers: dict[str, int] = {}
        self.left = 0
        self.changed = False  # whether the engines did anything since the reading before

    def read(self) -> Subject | None:
        """Read the metrics once more; None after the first reading, since counters mean nothing alone.

        Raises InputError if a URL does not answer, or is of no engine that is known.
        """
        now = {name: reading for url in self._urls for name, reading in self._engines(url).items()}
        windows = [
            (self._before[name], now[name]) for name in self._numbers if name in now and name in self._before
        ]
        for name in now:
            self._numbers.setdefault(name, len(self._numbers))
        restarted = {
            name
            for name, reading in now.items()
            if name in self._before and _fell(self._before[name], reading)
        }
        self._before = now
        self.changed = False
        if not windows or restarted:
            return None
        self.changed = any(_delta(*window, *TOKENS) > 0 for window in windows)
        if self.changed:
            self._windows.append(windows)
        if len(self._windows) > KEPT:
            del self._windows[0]
            self.left += 1
        if not self._windows:
            return None
        return Subject(", ".join(self._urls), "metrics of engines that run", (self._member(),))

    def _engines(self, url: str) -> dict[str, Reading]:
        text, t_s = self._get(url), self._clock()
        engines: dict[str, Counts] = defaultdict(lambda: defaultdict(float))
        for line in text.splitlines():
            found = None if line.startswith(b"#") else sample_of(line)
            if found is None or not found[0].startswith(("vllm:", "sglang:")):
                continue
            name, labels, value = found
            if not 0 <= value <= MOST:
                continue
            name = name.removesuffix("_total") if name != ENGINE_STEPS else name
            engine = labels.get("engine", labels.get("tp_rank", "0"))
            if name == CACHE_INFO:
                blocks, size = (labels.get(label, "") for label in ("num_gpu_blocks", "block_size"))
                value = float(blocks) * float(size) if blocks.isdecimal() and size.isdecimal() else 0.0
            if name == BY_POSITION:
                name = f"{BY_POSITION}/{labels.get('position', '0')}"
            counts = engines[f"{url} {engine}"]
            counts[name] = counts[name] + value if name != LENGTH else value
        if not engines:
            raise InputError(
                "URL", url, "metrics of vLLM or SGLang", "give the address with /metrics at its end"
            )
        return {name: Reading(t_s, dict(counts)) for name, counts in engines.items()}

    def _member(self) -> Member:
        stretches, positions, live, steps = [], [], [], []
        for number, windows in enumerate(self._windows, self.left):
            start_s, end_s = min(one.t_s for one, _ in windows), max(two.t_s for _, two in windows)
            drafts = accepted = 0
            for worker, (one, two) in enumerate(windows):
                stretch = _stretch(one, two)
                if stretch is not None:
                    stretches.append((number, worker, *stretch))
                drafts_here, accepted_here, by_position = _drafted(one, two)
                drafts, accepted = drafts + drafts_here, accepted + accepted_here
                positions += [(number, place, *counts) for place, counts in enumerate(by_position)]
                live.append(_live(number, worker, one, two))
            steps.append((number, start_s, end_s, end_s, drafts, accepted, -1, 0, 0))
        return Member("", None, "serving", None, self._run(stretches, positions, live, steps))

    def _run(self, stretches: Rows, positions: Rows, live: Rows, steps: Rows) -> RunTables:
        def frame(rows: Rows, columns: dict[str, str]) -> pd.DataFrame:
            return pd.DataFrame(list(rows), columns=list(columns)).astype(columns)

        summary = Summary(
            kind="measured", name="metrics", policy="", model="", gpu="", workers=len(self._numbers),
            gpus_per_worker=1, steps=len(steps), wall_s=0.0, response_tokens=0, cost_source="",
            lengths_source="", acceptance_source="", seed=0, tool_version=VERSION,
        )  # fmt: skip
        run = RunTables(
            path=Path("metrics"), summary=summary, responses=frame([], RESPONSE_COLUMNS),
            intervals=frame([], INTERVAL_COLUMNS), steps=frame(steps, STEP_COLUMNS), schedule=None,
            engine_steps=None, updates=None, rewards=None, live=frame(live, LIVE_COLUMNS),
        )  # fmt: skip
        run.__dict__["decision_intervals"] = DecisionIntervals(
            frame(stretches, STRETCH_COLUMNS), frame(positions, POSITION_COLUMNS)
        )
        return run


def _value(reading: Reading, *names: str) -> float:
    """Return the first of these that the engine tells, else 0."""
    return next((reading.counts[name] for name in names if name in reading.counts), 0.0)


def _delta(one: Reading, two: Reading, *names: str) -> float:
    """Return what a counter gained; 0 for one that a reading lacks."""
    both = [name for name in names if name in one.counts and name in two.counts]
    return max(two.counts[both[0]] - one.counts[both[0]], 0.0) if both else 0.0


def _fell(one: Reading, two: Reading) -> bool:
    """Return whether counters began again: another engine answers."""
    return _value(two, *TOKENS) < _value(one, *TOKENS)


def _drafted(one: Reading, two: Reading) -> tuple[int, int, list[tuple[int, int]]]:
    """Return request-steps with drafts, accepted drafts, and (drafted, accepted) by position.

    SGLang tells the acceptance length alone: the tokens over it are the request-steps.
    """
    if _value(two, LENGTH) >= 1:
        drafts = round(_delta(one, two, *TOKENS) / _value(two, LENGTH))
        return drafts, round(drafts * (_value(two, LENGTH) - 1)), []
    drafts = round(_delta(one, two, DRAFTS))
    places = sum(name.startswith(f"{BY_POSITION}/") for name in two.counts)
    accepted = [round(_delta(one, two, f"{BY_POSITION}/{place}")) for place in range(places)]
    drafted, left = round(_delta(one, two, DRAFTED)), []
    for count in accepted:  # request-steps that drafted this far; of how many each was is not told
        left.append((min(drafts, max(drafted, 0)), count))
        drafted -= drafts
    return drafts, round(_delta(one, two, ACCEPTED)), left


def _stretch(one: Reading, two: Reading) -> tuple[object, ...] | None:
    """Return a row of STRETCH_COLUMNS behind step and worker; None for a time in which the engine rested.

    A prompt that is prefilled meanwhile is in the seconds, as it is in those of other readings.
    """
    engine_steps = round(_delta(one, two, ENGINE_STEPS))
    running = [_value(each, *RUNNING) for each in (one, two)]
    if engine_steps < 1 or min(running) < 1:
        return None
    drafts, accepted, _ = _drafted(one, two)
    tokens = _delta(one, two, *TOKENS)
    request_steps = drafts or round(tokens)
    depth = round(_delta(one, two, DRAFTED) / drafts) if drafts else 0
    batch = max(request_steps / engine_steps, 1.0)
    context = _value(two, CACHE) * _value(two, CACHE_INFO) / batch
    return (str(depth) if depth else "off", depth, engine_steps, request_steps, two.t_s - one.t_s, context,
            accepted, round(running[0]), round(running[1]))  # fmt: skip


def _live(number: int, worker: int, one: Reading, two: Reading) -> tuple[object, ...]:
    """Return a row of LIVE_COLUMNS: a queue counts that was there at both ends."""
    batch = max(_value(one, *RUNNING), _value(two, *RUNNING))
    waiting = min(_value(one, *WAITING), _value(two, *WAITING))
    return (number, worker, one.t_s, two.t_s - one.t_s, batch, round(waiting),
            round(_delta(one, two, *PREEMPTED)), round(_delta(one, two, *PROMPTS)), "")  # fmt: skip
