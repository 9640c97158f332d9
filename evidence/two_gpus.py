"""An engine over two GPUs against the same engine on one of them, and against the roofline of both.

Measured on two H200 of one host; the repeats are in evidence/runs/h200x2-qwen2.5-7b-tp. Engine steps at TP 2
were predicted before (evidence/training_before.py), of an engine that drafts: with K = 0 it runs its drafter
once, which the plain engine that was measured does not. So the roofline is held against both engines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from evidence.recording import HERE, RUNS, write, write_raw
from evidence.shapes_claims import BIAS, MEAN
from evidence.training_before import Before
from tlt.analysis.drawing.tables import markdown_rows
from tlt.realrun.calibrate.points import median_and_spread
from tlt.realrun.calibrate.progress_file import Line
from tlt.realrun.calibrate.time_steps import Block, MixedBlock
from tlt.sim.steptimes.calibration import predict_mixed_s, predict_s
from tlt.sim.steptimes.law import Coefficients
from tlt.sim.steptimes.parallel import Parallel
from tlt.sim.steptimes.roofline import Assumptions, roofline
from tlt.traces.catalogue.gpus import gpu_spec
from tlt.traces.catalogue.models import model_shape
from tlt.traces.common.arrays import Floats
from tlt.traces.results.calibration_points import MixedPoint, Point
from tlt.traces.runs.runfolder import read_struct
from tltsched.draft_config import OFF
from tltsched.errors import InputError

DATA = RUNS / "h200x2-qwen2.5-7b-tp"
PREDICTED = RUNS / "h200x2-smollm2-train" / "predicted.json"
SHAPE, GPU, TPS = "Qwen2.5-7B", "H200", (1, 2)
ASSUMED = Assumptions()
ARRIVING_TOKENS = (256, 1024, 4096)  # prompts beside decode that the record tells of; the table has 16, too
BESIDE = 0.15  # target of evidence.prefill_claims


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one kind of engine step: measured at TP 1 and 2, and by the roofline of each."""

    batch: int
    context_tokens: int
    prompt_tokens: int  # that are prefilled beside the batch; 0: it decodes alone
    measured_s: tuple[float, float]
    roofline_s: tuple[float, float]
    predicted_s: float | None = None  # at TP 2 with K = 0 of an engine that drafts, committed before

    def error(self, tp: int) -> float:
        """Return the signed error of the roofline at TP 1 or 2, as a share."""
        return self.roofline_s[tp - 1] / self.measured_s[tp - 1] - 1.0

    def ratio(self, seconds: tuple[float, float]) -> float:
        """Return what TP 2 takes of the time of TP 1."""
        return seconds[1] / seconds[0]


def law_of(tp: int) -> Coefficients:
    """Return the roofline that nothing of this was fitted to."""
    return roofline(model_shape(SHAPE), gpu_spec(GPU), Parallel(tp=tp), ASSUMED, trees=False)


def lines_of(tp: int) -> list[Line]:
    """Read the repeats of one engine; raises InputError for a line that is none of a calibration."""
    path = DATA / f"tp{tp}.points.jsonl"
    try:
        return [msgspec.json.decode(line, type=Line) for line in path.read_bytes().splitlines()]
    except msgspec.MsgspecError as error:
        fix = "restore the file"
        raise InputError("points", f"{path}: {error}", "lines of a calibration", fix) from None


def plain_points(lines: Iterable[Line]) -> dict[tuple[int, int], Point]:
    """Return the plain engine steps by (batch, context): medians of the repeats."""
    groups: dict[tuple[int, int], list[Block]] = defaultdict(list)
    for line in lines:
        if isinstance(line, Block) and line.engine == "plain":
            groups[line.cell.batch, line.cell.prompt_tokens].append(line)
    points = {}
    for (batch, context), same in sorted(groups.items()):
        median_s, spread_s = median_and_spread([block.seconds for block in same])
        points[batch, context] = Point(
            provenance="measured", when_off="not_configured", draft_config=OFF, batch=batch,
            context_tokens=float(np.mean([block.context_tokens for block in same])),
            engine_step_s=median_s, repeats=len(same), spread_s=spread_s, held_out=False,
        )  # fmt: skip
    return points


def mixed_points(lines: Iterable[Line]) -> dict[tuple[int, int, int], MixedPoint]:
    """Return the plain engine steps that prefill beside a batch, by (batch, context, prompt): medians."""
    groups: dict[tuple[int, int, int], list[MixedBlock]] = defaultdict(list)
    for line in lines:
        if isinstance(line, MixedBlock) and line.engine == "plain":
            arrival = line.arrival
            groups[arrival.cell.batch, arrival.cell.prompt_tokens, arrival.prompt_tokens].append(line)
    points = {}
    for (batch, context, prompt), same in sorted(groups.items()):
        median_s, spread_s = median_and_spread([block.seconds for block in same])
        points[batch, context, prompt] = MixedPoint(
            when_off="not_configured", draft_config=OFF, batch=batch,
            context_tokens=float(np.mean([block.context_tokens for block in same])),
            prompt_tokens=prompt, engine_step_s=median_s, repeats=len(same), spread_s=spread_s,
            held_out=False,
        )  # fmt: skip
    return points


def decode_rows() -> list[Row]:
    """Return the engine steps that decode alone."""
    one, two = (plain_points(lines_of(tp)) for tp in TPS)
    laws = [law_of(tp) for tp in TPS]
    committed = {
        (step.batch, step.context_tokens): step.seconds
        for step in read_struct(PREDICTED, Before).two_gpus
        if step.k == 0
    }
    return [
        Row(
            batch=cell[0], context_tokens=cell[1], prompt_tokens=0,
            measured_s=(one[cell].engine_step_s, two[cell].engine_step_s),
            roofline_s=(predict_s(laws[0], one[cell]), predict_s(laws[1], two[cell])),
            predicted_s=committed[cell],
        )
        for cell in sorted(one, key=lambda cell: cell[::-1])
    ]  # fmt: skip


def mixed_rows() -> list[Row]:
    """Return the engine steps that prefill one prompt beside a batch."""
    one, two = (mixed_points(lines_of(tp)) for tp in TPS)
    laws = [law_of(tp) for tp in TPS]
    return [
        Row(
            batch=cell[0], context_tokens=cell[1], prompt_tokens=cell[2],
            measured_s=(one[cell].engine_step_s, two[cell].engine_step_s),
            roofline_s=(predict_mixed_s(laws[0], one[cell]), predict_mixed_s(laws[1], two[cell])),
        )
        for cell in sorted(one, key=lambda cell: (cell[2], cell[0]))
    ]  # fmt: skip


def allreduce_s(row: Row, bandwidth: bool = False) -> float:
    """Return the seconds of one all-reduce, by what TP 2 saves at `row`.

    All else of what it saves is taken as the roofline has it. With `bandwidth` what the roofline is off at
    TP 1 is taken to be the reading of weights, of which TP 2 saves half.
    """
    exchanges = 2 * model_shape(SHAPE).layers
    off_s = row.roofline_s[0] - row.measured_s[0] if bandwidth else 0.0
    saved_s = row.roofline_s[0] - row.roofline_s[1] + exchanges * ASSUMED.allreduce_s - off_s / 2
    return (saved_s - (row.measured_s[0] - row.measured_s[1])) / exchanges


def figures_of(decode: Sequence[Row], mixed: Sequence[Row]) -> dict[str, float]:
    """Return the figures of the record."""
    values: dict[str, float] = {}
    committed = np.array([row.predicted_s / row.measured_s[1] - 1.0 for row in decode if row.predicted_s])
    groups = {f"decode, TP {tp}": np.array([row.error(tp) for row in decode]) for tp in TPS}
    for name, errors in (groups | {"decode, TP 2, committed before for K = 0": committed}).items():
        values |= {f"{name}: mean error": _mean(np.abs(errors)), f"{name}: signed": _mean(errors)}
    values["TP 2 over TP 1, decode: measured"] = _mean([row.ratio(row.measured_s) for row in decode])
    values["TP 2 over TP 1, decode: by the roofline"] = _mean([row.ratio(row.roofline_s) for row in decode])
    least = decode[0]
    for tp in TPS:
        off_s = least.roofline_s[tp - 1] - least.measured_s[tp - 1]
        values[f"batch 1, TP {tp}: roofline too long by"] = round(off_s * 1e3, 3)
    values["an all-reduce: assumed"] = round(ASSUMED.allreduce_s * 1e6, 1)
    values["an all-reduce: by what TP 2 saves"] = round(allreduce_s(least) * 1e6, 1)
    values["an all-reduce: if the rest were bandwidth"] = round(allreduce_s(least, bandwidth=True) * 1e6, 1)
    for tokens in ARRIVING_TOKENS:
        same = [row for row in mixed if row.prompt_tokens == tokens]
        for tp in TPS:
            for what, seconds in (("measured", "measured_s"), ("by the roofline", "roofline_s")):
                median_s = np.median([getattr(row, seconds)[tp - 1] for row in same])
                values[f"{tokens:,} tokens beside decode, TP {tp}: {what}"] = round(float(median_s) * 1e3, 2)
    return values


def _mean(values: Floats | Sequence[float]) -> float:
    return round(float(np.mean(values)), 4)


def unit_of(figure: str) -> str:
    """Return the unit of a figure of the record."""
    if "all-reduce" in figure:
        return "us"
    if figure.startswith("TP 2 over"):
        return "share"
    return "share of the measured step" if figure.startswith("decode") else "ms"


def is_met(values: Mapping[str, float], mixed: Sequence[Row]) -> bool:
    """Return whether decode at TP 2 is as near as one GPU has to be, and prefill beside it, too."""
    decode = values["decode, TP 2: mean error"] <= MEAN and abs(values["decode, TP 2: signed"]) <= BIAS
    return decode and all(abs(row.error(2)) <= BESIDE for row in mixed)


def table_of(rows: Sequence[Row]) -> str:
    """Return a row an engine step, milliseconds and errors."""
    headers = (
        "Batch", "Context", "Prompt beside it", "TP 1 (ms)", "Roofline", "Error", "TP 2 (ms)", "Roofline ",
        "Error ", "TP 2 / TP 1", "Roofline  ", "Committed, K = 0 (ms)", "Error  ",
    )  # fmt: skip
    cells = []
    for row in rows:
        prompt = f"{row.prompt_tokens:,}" if row.prompt_tokens else "-"
        cell = [str(row.batch), f"{row.context_tokens:,}", prompt]
        for tp in TPS:
            cell += [f"{seconds[tp - 1] * 1e3:.2f}" for seconds in (row.measured_s, row.roofline_s)]
            cell.append(f"{row.error(tp):+.1%}")
        cell += [f"{row.ratio(row.measured_s):.2f}", f"{row.ratio(row.roofline_s):.2f}"]
        committed_s = row.predicted_s
        cell += (
            ["-", "-"]
            if committed_s is None
            else [f"{committed_s * 1e3:.2f}", f"{committed_s / row.measured_s[1] - 1:+.1%}"]
        )
        cells.append(tuple(cell))
    return markdown_rows(headers, cells) + "\n"


def how(values: Mapping[str, float], decode: Sequence[Row], mixed: Sequence[Row]) -> str:
    """Say how the figures came about, what is off, and what was not run."""
    host_s = ASSUMED.step_host_s + model_shape(SHAPE).layers * ASSUMED.layer_launch_s
    one, two = (values[f"batch 1, TP {tp}: roofline too long by"] for tp in TPS)
    assumed, saved, bandwidth = (
        values[f"an all-reduce: {which}"]
        for which in ("assumed", "by what TP 2 saves", "if the rest were bandwidth")
    )
    of_tp_s = 2 * model_shape(SHAPE).layers * (ASSUMED.allreduce_s - allreduce_s(decode[0], bandwidth=True))
    short = [row.measured_s for row in mixed if 256 <= row.prompt_tokens <= 1024]
    least, most = ([each * 1e3 for each in ends] for ends in (np.min(short, axis=0), np.max(short, axis=0)))
    long = [
        values[f"4,096 tokens beside decode, TP {tp}: measured"]
        / values[f"4,096 tokens beside decode, TP {tp}: by the roofline"]
        for tp in TPS
    ]
    return (
        "measured: medians of 3 repeats; modelled: the roofline, assumed. Decode meets its target. At "
        f"batch 1 the roofline is {one:.2f} ms too long at TP 1 and {two:.2f} at TP 2: as much, so that "
        f"tensor parallelism has no part in it if it is host and launches, assumed at {host_s * 1e3:.1f} "
        f"ms; an all-reduce then takes {saved} us where {assumed:.0f} are assumed. Were it the reading of "
        f"weights, which TP 2 halves, an all-reduce would take {bandwidth} us, and {of_tp_s * 1e3:.2f} ms "
        f"of the {two:.2f} were its; one shape cannot tell. The engine steps committed before the run "
        "(06:54 UTC of the same day) are those of an engine that drafts, with K = 0: they hold a pass of "
        f"its drafter ({law_of(2).off_s * 1e3:.2f} ms), which the plain engine that was measured does not "
        "make. Prefill beside decode misses: at TP 2 prompts of 256 and of 1,024 tokens take "
        f"{least[1]:.0f} to {most[1]:.0f} ms alike, which is the host, and a roofline has none there (at TP "
        f"1 {least[0]:.0f} to {most[0]:.0f}); 4,096 tokens take {long[0]:.2f} times (TP 1) and "
        f"{long[1]:.2f} times (TP 2) what it assumes. An engine that drafts at TP 2, and replays, were run "
        "on another machine of the kind: two_gpus_drafting, two_gpus_replay"
    )


def two_gpus() -> None:
    """Engine steps over two GPUs against those over one, and against the roofline of both."""
    decode, mixed = decode_rows(), mixed_rows()
    values = figures_of(decode, mixed)
    (HERE / "two_gpus.md").write_text(table_of([*decode, *mixed]), encoding="utf-8")
    write(
        "two_gpus",
        claim="engine steps of a 7B shape over two H200 (TP 2) and over one (TP 1) against the roofline of "
        "each; no speculation",
        value=values,
        unit={figure: unit_of(figure) for figure in values},
        target=f"as for one GPU: decode within {MEAN:.0%} in the mean and {BIAS:.0%} of bias, prefill beside "
        f"it within {BESIDE:.0%}",
        met=is_met(values, mixed),
        how=how(values, decode, mixed),
        measured_on="one and two H200 of one host, vLLM 0.32.0, stock graphs, 2026-11-29",
        raw=write_raw("two_gpus.points.jsonl", [msgspec.to_builtins(row) for row in (*decode, *mixed)]),
    )
