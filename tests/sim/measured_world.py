"""A calibration with a known law, and measured comparisons that the simulator makes, distorted at will."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from tlt.sim.steptimes.calibration import predict_s
from tlt.sim.steptimes.fit_live import fit_points
from tlt.sim.steptimes.law import Coefficients
from tlt.sim.steptimes.tables import StepCosts
from tlt.sim.validate.replay_measured import MeasuredPolicy, simulate_replay
from tlt.traces.catalogue.models import model_shape
from tlt.traces.results.calibration_points import MeasuredPoints, Point, PrefillPoint, SwitchPoint
from tlt.traces.runs.runfolder import Comparison, RunFolder, Summary, write_json
from tltsched.cluster_config import ClusterConfig
from tltsched.dispatch import contiguous
from tltsched.draft_config import OFF, chain
from tltsched.event_log import SchedulerSetup
from tltsched.events import Request
from tltsched.policies import parse_policy

BATCHES = (1, 2, 4, 8, 16, 32, 64)
TRUE = Coefficients(
    knots_tokens=(1.0, 8.0, 64.0),
    floor_s=0.006,
    slopes_s_per_token=(0.0, 2e-5, 6e-5),
    kv_s_per_token=3e-8,
    drafter_kv_share=1 / model_shape("Qwen2.5-7B").layers,
    off_s=0.0006,
    off_s_per_request=5e-6,
    draft_s=0.0003,
    draft_pass_s=0.0004,
    draft_pass_s_per_request=4e-6,
    graph_tokens=None,
    eager_s=0.0,
    prefill_chunk_s=0.003,
    prefill_s_per_token=3e-5,
    prefill_s_per_pair=2e-9,
    draft_s_per_token=3e-6,
    kv_s_per_verified_token=4e-9,
)


def measured(
    law: Coefficients = TRUE, device: str = "CPU Some, 1 thread", noise: float = 0.0
) -> MeasuredPoints:
    rng = np.random.default_rng(1)
    cases = [("not_configured", OFF), ("k0", OFF), *(("k0", chain(k)) for k in (1, 2, 4))]
    points = []
    for row, batch in enumerate(BATCHES):
        for column, context in enumerate((100.0, 1000.0, 4000.0)):
            for index, (when_off, draft_config) in enumerate(cases):
                blank = Point(
                    provenance="measured", when_off=when_off, draft_config=draft_config, batch=batch,
                    context_tokens=context, engine_step_s=1.0, repeats=5, spread_s=1e-4,
                    held_out=0 < row < 6 and (row + 2 * column + index) % 3 == 1,
                )  # fmt: skip
                engine_step_s = predict_s(law, blank) * (1 + noise * float(rng.standard_normal()))
                points.append(msgspec.structs.replace(blank, engine_step_s=engine_step_s))
    return MeasuredPoints(
        name="fake", engine="vLLM", engine_version="0.32.0", device=device, date="2026-11-28",
        model="Qwen2.5-7B", tp=1, licence="Apache-2.0", notes=("a note",), graph_tokens=law.graph_tokens,
        graph_batches=law.graph_batches, chunk_tokens=2048.0, points=tuple(points),
        prefill_points=tuple(
            PrefillPoint(batch=b, prompt_tokens=n, prefill_s=law.prefill_s(b * n, b * n * n, 2048.0))
            for b in (1, 4) for n in (64, 700, 3000)
        ),
        switch_points=(
            SwitchPoint(from_k=0, to_k=4, batch=1, extra_s=-0.001, repeats=5, spread_s=1e-4),
            SwitchPoint(from_k=4, to_k=0, batch=1, extra_s=0.004, repeats=5, spread_s=1e-4),
        ),
    )  # fmt: skip


def write_calibration(path: Path) -> Path:
    """Write the calibration of `measured()`."""
    write_json(path, fit_points(measured()))
    return path


SURVIVAL = (0.8, 0.6, 0.45, 0.3)
ENGINE = {"engine": "vLLM", "engine_version": "0.32.0", "device": "CPU Some, 1 thread"}


def write_measured(
    path: Path,
    calibration: Path,
    distortion: dict[str, float],
    rollouts: int = 6,
    survival: Sequence[float] = SURVIVAL,
) -> Path:
    """Write a measured comparison: what the simulator says of each draft configuration, its times multiplied
    by a factor.
    """
    for draft_config in distortion:
        _write_requests(path / _folder(draft_config), draft_config, rollouts, survival)
    names = tuple(_folder(draft_config) for draft_config in distortion)
    write_json(path / "comparison.json", Comparison(name="fake replay", runs=names))
    simulated = path.with_name(path.name + ".made")
    simulate_replay(path, calibration, simulated)
    for draft_config, factor in distortion.items():
        _distort(simulated / _folder(draft_config), path / _folder(draft_config), factor)
    return path


def _folder(draft_config: str) -> str:
    return draft_config.replace(":", "-")


def _summary(draft_config: str, rollouts: int, tokens: int) -> Summary:
    return Summary(
        kind="measured", name="fake replay", policy=draft_config, model="Qwen2.5-7B", gpu="CPU", workers=2,
        gpus_per_worker=1, steps=rollouts, wall_s=1.0, response_tokens=tokens, cost_source="measured: a test",
        lengths_source="generated: log-normal", acceptance_source="assumed: a test", seed=3, tool_version="0",
    )  # fmt: skip


def _write_requests(folder: Path, draft_config: str, rollouts: int, survival: Sequence[float]) -> None:
    """Write what a simulation reads: requests on their workers, settings and scheduler."""
    rng = np.random.default_rng(7)
    rows = []
    for step in range(rollouts):
        lengths = np.minimum(rng.lognormal(4.0, 0.8, 24).astype(int) + 2, 400)
        placement = contiguous([Request(n, n, 16) for n in range(24)], 2)
        worker = {request.id: index for index, part in enumerate(placement) for request in part}
        rows += [
            (step, n, n, worker[n], 16, int(length), False, 0.0, 0.5) for n, length in enumerate(lengths)
        ]
    names = "step request group worker prompt_tokens response_tokens truncated start_s finish_s"
    responses = pd.DataFrame(rows, columns=names.split())
    intervals = pd.DataFrame({"worker": [0, 1], "cause": "decode", "step": 0, "start_s": 0.0, "end_s": 1.0})
    steps = pd.DataFrame({"step": range(rollouts), "start_s": 0.0, "rollout_end_s": 1.0, "end_s": 1.0})
    steps = steps.assign(
        request_steps=0, accepted_tokens=0, drafter_version=0, drafter_age_steps=0, trained_tokens=0
    )
    summary = _summary(draft_config, rollouts, int(responses["response_tokens"].sum()))
    RunFolder(folder).write(summary, responses, intervals, steps)
    config = {"engine": {"max_running": 16, "device": "cpu"}, "drafter": {"synthetic_survival": survival}}
    write_json(folder / "resolved_config.json", config)
    write_json(folder / "engine.json", ENGINE)
    setup = SchedulerSetup(
        workers=2, policy=parse_policy(draft_config), cluster=ClusterConfig(phases=()), seed=3
    )
    write_json(folder / "scheduler.json", setup)


def _distort(simulated: Path, measured_folder: Path, factor: float) -> None:
    source, target = RunFolder(simulated), RunFolder(measured_folder)
    tables = []
    for table in (source.responses(), source.intervals(), source.steps()):
        times = [name for name in table.columns if name.endswith("_s")]
        tables.append(table.assign(**{name: table[name] * factor for name in times}))
    summary = source.summary()
    target.write(msgspec.structs.replace(summary, kind="measured", wall_s=summary.wall_s * factor), *tables)
    (measured_folder / "records.jsonl").write_bytes((simulated / "records.jsonl").read_bytes())
    _write_engine_steps(measured_folder, factor)


def _write_engine_steps(folder: Path, factor: float) -> None:
    """Write engine steps of falling batches, as the law says times the factor, and some that it does not
    cover.
    """
    draft_config = MeasuredPolicy(folder)
    depth = max(row.depth for row in draft_config.setup.policy.build(None, None).draft_configs)  # type: ignore[arg-type]
    costs = StepCosts(TRUE, draft_config.when_off, 16, 2048.0, 0, 0.0).of(chain(depth))
    rows = []
    for step in range(draft_config.summary.steps):
        for n, batch in enumerate((12, 12, 8, 4, 2, 1)):
            held = batch * (20 + 40 * n)
            seconds = factor * (costs.fixed_s[batch] + costs.context_s_per_token * held)
            rows.append((step, 0, 0.1 * n, seconds, batch, held, 0, depth, batch * depth, batch * depth // 2))
        rows.append((step, 0, 0.0, 0.005, 12, 0, 192, depth, 0, 0))  # prefill
        if depth:
            rows.append((step, 0, 0.0, 0.02, 12, 200, 0, depth, 0, 0))  # nothing to verify yet
    names = "step worker t_s seconds batch context_tokens prompt_tokens k drafted_tokens accepted_tokens"
    frame = pd.DataFrame(rows, columns=names.split()).assign(compiled=False)
    frame.to_parquet(folder / "engine_steps.parquet", index=False)
