"""Small settings that the tests of the simulator share: a plain cost law, pools, single engines, runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from tlt.sim.acceptance.laws import AcceptanceLaw
from tlt.sim.acceptance.process import Acceptance
from tlt.sim.config import Config, resolve
from tlt.sim.model.cluster import Cluster
from tlt.sim.model.draft_counts import DraftCounts
from tlt.sim.model.engines.engine import Engine
from tlt.sim.model.engines.exact_engine import ExactEngine
from tlt.sim.model.engines.jump_engine import JumpEngine
from tlt.sim.model.engines.running_batch import Limits, RequestPool, Submission
from tlt.sim.simulation import Simulation
from tlt.sim.steptimes.law import Coefficients
from tlt.sim.steptimes.tables import StepCosts
from tlt.traces.lengths.schema import Origin, Trace
from tltsched.commands import SetDraftConfig
from tltsched.draft_config import OFF
from tltsched.event_log import Recorder

ENGINES: dict[str, type[Engine]] = {"jump": JumpEngine, "exact": ExactEngine}
# All coefficients are round numbers, so that expected times can be worked out by hand.
PLAIN = Coefficients(
    knots_tokens=(1.0, 8.0),
    floor_s=0.010,
    slopes_s_per_token=(0.0, 0.0005),
    kv_s_per_token=1e-6,
    drafter_kv_share=0.25,
    off_s=0.001,
    off_s_per_request=0.0001,
    draft_s=0.002,
    draft_pass_s=0.001,
    draft_pass_s_per_request=0.0001,
    graph_tokens=None,
    eager_s=0.0,
    prefill_chunk_s=0.002,
    prefill_s_per_token=1e-5,
    prefill_s_per_pair=1e-9,
)
ROOM = Limits(max_running=64, kv_tokens=1e9, prefix_caching=False)
CHUNK_TOKENS = 1000.0


def costs(max_requests: int = 64, coefficients: Coefficients = PLAIN) -> StepCosts:
    """Return step costs of an engine without speculation configured."""
    return StepCosts(coefficients, "not_configured", max_requests, CHUNK_TOKENS, 0, 0.0, mixes=False)


def submission(
    lengths: Sequence[int], prompt_tokens: int = 10, group: Sequence[int] | None = None, exponent: float = 1.0
) -> Submission:
    """Return requests of these lengths."""
    n = len(lengths)
    return Submission(
        ids=np.arange(n),
        group=np.arange(n) if group is None else np.asarray(group),
        prompt_tokens=np.full(n, prompt_tokens),
        length=np.asarray(lengths, np.int64),
        exponent=np.full((n, 1), exponent),
        emitted=np.zeros(n, np.int64),
        kv_kept=np.zeros(n, bool),
    )


class Drive(msgspec.Struct):
    """What an engine did until all of its requests were done."""

    seconds: float
    engine_steps: int
    request_steps: int
    accepted: int
    preemptions: int
    finish_s: dict[int, float]


def drive(
    mode: str,
    pool: RequestPool,
    law: AcceptanceLaw,
    choose: Callable[[int], SetDraftConfig],
    seed: int = 0,
    max_requests: int = 64,
    step_costs: StepCosts | None = None,
) -> Drive:
    """Run an engine on its own (prefill takes no time); `choose(decision_interval)` gives each decision
    interval's command.
    """
    step_costs = step_costs or costs(max_requests)
    engine = ENGINES[mode](step_costs, Acceptance(law), np.random.default_rng(seed))
    engine.submit(pool, 1.0)
    told = Drive(0.0, 0, 0, 0, 0, {})
    decision_interval = 0
    while pool.pending():
        engine.admit()
        while pool.prefilling:
            for request in engine.prefill_step().finished.tolist():
                told.finish_s[request] = told.seconds
            engine.admit()
        start_s = told.seconds
        if not len(pool.running):
            continue
        for seconds in engine.run(choose(decision_interval)):
            told.seconds += seconds
        done = engine.decision_interval
        told.engine_steps += done.engine_steps
        told.request_steps += done.request_steps
        told.accepted += sum(done.accepted_by_position)
        for request, finish_s in zip(done.finished.tolist(), done.finish_s.tolist(), strict=True):
            assert request not in told.finish_s, "a request finished twice"
            told.finish_s[request] = start_s + finish_s
        decision_interval += 1
        assert decision_interval < 100_000, "the engine stands still"
    told.preemptions = pool.preemptions
    return told


def no_drafts(decision_interval: int) -> SetDraftConfig:
    """Decode without drafts until all are done."""
    del decision_interval
    return SetDraftConfig(0, OFF, None, 1)


def trace_of(steps: Sequence[Sequence[int]], prompt_tokens: int = 10, samples: int = 1) -> Trace:
    """Return a trace of these response lengths by step; `samples` of a step in a row share a prompt."""
    rows: list[tuple[int, int, int, int, int, bool]] = []
    prompt = 0
    for step, lengths in enumerate(steps):
        for index, length in enumerate(lengths):
            rows.append((step, prompt + index // samples, index % samples, prompt_tokens, length, False))
        prompt += -(-len(lengths) // samples)
    names = ["step", "prompt_id", "sample", "prompt_tokens", "response_tokens", "truncated"]
    frame = pd.DataFrame(rows, columns=names).astype(
        {"step": "int32", "prompt_id": "int64", "sample": "int32", "prompt_tokens": "int32",
         "response_tokens": "int32", "truncated": "bool"}
    )  # fmt: skip
    origin = Origin(
        source="made by a test",
        kind="generated",
        model="",
        tokenizer="",
        max_response_tokens=None,
        licence="",
        note="",
    )
    return Trace(frame, origin)


def config_of(settings: dict[str, Any], policy: str | None = None) -> Config:
    """Return a configuration from dotted names: {"hardware.gpus": 8}; requests accept alike by default."""
    nested: dict[str, Any] = {}
    for name, value in ({"acceptance.request_spread": 0.0} | settings).items():
        *path, last = name.split(".")
        table = nested
        for part in path:
            table = table.setdefault(part, {})
        table[last] = value
    return resolve(nested, policy)


class Run(msgspec.Struct):
    """A finished simulation."""

    simulation: Simulation
    cluster: Cluster
    records: bytes
    wall_s: float
    responses: pd.DataFrame
    intervals: pd.DataFrame
    steps: pd.DataFrame


def simulate(
    config: Config,
    trace: Trace,
    coefficients: Coefficients | None = PLAIN,
    progress: Callable[[int], None] | None = None,
) -> Run:
    """Run a configuration on a trace; records are kept as bytes, and drafts are counted by request.

    `progress(step)` is called after each step.
    """
    simulation = Simulation(config, trace, coefficients)
    lines: list[bytes] = []
    cluster = simulation.run(Recorder(lines.append), progress, DraftCounts())
    return Run(simulation, cluster, b"".join(lines), float(cluster.env.now), *cluster.tables())
