"""TLT as released against TLT as in its paper, term by term: `python -m evidence.released_vs_paper`.

Writes the record, its points and table beside this file, and docs/pictures/released_vs_paper.png.

Terms are switched from the released to the paper's form in three ways: one after the other in a fixed order
(the gains add up to the whole), each alone from the released form, and each alone held back from the paper's.
Where the three disagree, terms interact.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import numpy as np
from matplotlib.figure import SubFigure

from evidence.recording import HERE, OTHERS, PICTURES, write, write_raw
from tlt.analysis.drawing.figure import draw as draw_picture
from tlt.analysis.drawing.tables import markdown_rows
from tlt.sim.config import Config, resolve
from tlt.sim.simulation import Simulation
from tlt.sim.workload import load_workload
from tlt.traces.common.arrays import Floats
from tlt.traces.common.intervals import Estimate, mean_difference_s
from tlt.traces.common.settings import settings_of
from tlt.traces.lengths.schema import Trace
from tltsched.policies.threshold import ThresholdConfig

NAME = "released_vs_paper"
SLOWER = "released over paper, 0.1 ms a layer assumed"
SHARE = "share of the gap that this assumption makes"
SETTINGS = (
    "hardware.gpus=128", "hardware.tp=4", "hardware.model=Qwen2.5-32B", "cost.source=paper-qwen32b-tp4",
    "workload.lengths=r1-client35", "workload.prompts_per_step=256", "workload.samples_per_prompt=8",
    "workload.max_response_tokens=32768", "workload.steps=12", "workload.group_correlation=0.5",
    "run.records=false",
)  # fmt: skip
DRIFTS: dict[str, tuple[str, ...]] = {
    "no drift": (),
    "drift 0.05 a step (assumed)": ("drafter.drift_per_update=0.05",),
}
# In this order: first what happens in the bulk phase, then at the switch, then while drafting.
TERMS: dict[str, str] = {
    "eager": "eager bulk phase: no CUDA graph above 32 requests",
    "reprefill": "re-prefill of everything at the switch",
    "latch": "one-way latch",
    "one_config": "one draft configuration a bucket, so no bandit, and the shipped strategies",
    "training": "drafter training off",
    "batch": "512 instead of 256 requests at most",
}
# The same as steps of the picture, from released to paper.
SHORT = {
    "eager": "CUDA graphs in the bulk phase", "reprefill": "drafter's prefill alone at the switch",
    "latch": "drafting off again above 32", "one_config": "bandit over the paper's strategies",
    "training": "drafter training on idle workers", "batch": "256 requests at most",
}  # fmt: skip
# The first term is this setting's: assumed, so the answer is told over a range of it as well.
EAGER = "engine.eager_s_per_layer"
ASSUMED_S = 1e-4
RANGE_S = (0.7 * ASSUMED_S, 1.3 * ASSUMED_S)
WAYS = ("in order", "alone from released", "held back from paper")


class Laboratory:
    """Runs mixtures of the two presets on the same lengths."""

    def __init__(self, drift: tuple[str, ...]) -> None:
        self.released: Config = resolve(settings_of(None, (*SETTINGS, *drift)), "tlt_released")
        self.paper: Config = resolve(settings_of(None, (*SETTINGS, *drift)), "tlt")
        self.trace: Trace = load_workload(self.paper.workload, self.paper.run.seed)
        self._known: dict[tuple[str, ...], Floats] = {}

    def steps_s(self, fixed: Collection[str]) -> Floats:
        """Return seconds of each step where the terms in `fixed` are the paper's and the others released."""
        key = tuple(term for term in TERMS if term in fixed)
        if key not in self._known:
            cluster = Simulation(self._mixture(key), self.trace).run()
            self._known[key] = np.array([row["end_s"] - row["start_s"] for row in cluster.log.step_rows])
        return self._known[key]

    def _mixture(self, fixed: Collection[str]) -> Config:
        def side(term: str) -> Config:
            return self.paper if term in fixed else self.released

        def policy(term: str) -> ThresholdConfig:
            found = side(term).policy
            assert isinstance(found, ThresholdConfig)
            return found

        replace = msgspec.structs.replace
        return replace(
            self.paper,
            policy=replace(
                policy("one_config"), latch=policy("latch").latch,
                resume_cost=policy("reprefill").resume_cost,
            ),
            engine=replace(
                self.paper.engine,
                graph_max_requests=side("eager").engine.graph_max_requests,
                max_running=side("batch").engine.max_running,
            ),
            cluster=side("training").cluster,
        )  # fmt: skip


def decompose(laboratory: Laboratory, drift: str) -> list[dict[str, Any]]:
    """Return a row a term: seconds a step that the released form takes more, in the three ways."""
    rows: list[dict[str, Any]] = []
    done: list[str] = []
    every = set(TERMS)
    for term in TERMS:
        before = laboratory.steps_s(done)
        done.append(term)
        ways = {
            "in order": (before, laboratory.steps_s(done)),
            "alone from released": (laboratory.steps_s(()), laboratory.steps_s((term,))),
            "held back from paper": (laboratory.steps_s(every - {term}), laboratory.steps_s(every)),
        }
        row: dict[str, Any] = {"drift": drift, "term": term}
        for way, (slow, fast) in ways.items():
            found: Estimate = mean_difference_s(slow, fast)
            ends = [round(end, 2) for end in found.interval or ()]
            row[way] = {"s": round(found.value, 2), "interval": ends}
        rows.append(row)
    forms = {"released_s": (), "paper_s": tuple(TERMS)}
    totals = {name: round(float(laboratory.steps_s(fixed).mean()), 2) for name, fixed in forms.items()}
    return [{"drift": drift, "term": "whole", **totals}, *rows]


def table(points: Sequence[dict[str, Any]]) -> str:
    """Return the Markdown table that follows from the points."""
    cells: list[tuple[str, ...]] = []
    for drift in dict.fromkeys(row["drift"] for row in points):
        whole, *terms = [row for row in points if row["drift"] == drift]
        gap_s = whole["released_s"] - whole["paper_s"]
        cells.append((f"**{drift}**: released", f"{whole['released_s']:.1f}", "", ""))
        cells += [(TERMS[row["term"]], *(_cell(row[way]) for way in WAYS)) for row in terms]
        sums = [sum(row[way]["s"] for row in terms) for way in WAYS]
        cells.append(("sum of the terms", *(f"{total:+.1f}" for total in sums)))
        cells.append(
            ("remainder to the whole gap (interaction)", *(f"{gap_s - total:+.1f}" for total in sums))
        )
        cells.append(("paper", f"{whole['paper_s']:.1f}", "", ""))
    headers = ("Seconds a step that the released form adds", *WAYS)
    return markdown_rows(headers, cells)


def _cell(found: dict[str, Any]) -> str:
    low, high = found["interval"]
    return f"{found['s']:+.1f} [{low:+.1f}, {high:+.1f}]"


def draw(points: Sequence[dict[str, Any]], reach: tuple[float, float]) -> bytes:
    """Return the waterfall of the terms in order, without drift; `reach`: of the slowdown over RANGE_S."""
    first = points[0]["drift"]
    whole, *terms = [row for row in points if row["drift"] == first]

    def build(figure: SubFigure) -> str:
        axes = figure.subplots()
        labels = ["TLT as released", *(SHORT[row["term"]] for row in terms), "TLT as in the paper"]
        level, margin = whole["released_s"], 0.3 * abs(whole["released_s"] - whole["paper_s"])
        axes.plot(level, 0, "o", color="#3a6fc4")
        axes.text(level, 0, f"   {level:.1f} s", va="center", fontsize=9)
        for index, row in enumerate(terms, 1):
            gain = row["in order"]["s"]
            axes.plot([level, level], [index - 1, index], color="#444444", linewidth=0.8)
            axes.barh(index, -gain, left=level, color="#31a354" if gain >= 0 else "#d62728", height=0.6)
            shown = f"   {-gain:+.1f} s" if gain else "   nothing"
            axes.text(max(level, level - gain), index, shown, va="center", fontsize=9)
            level -= gain
        axes.plot([level, level], [len(terms), len(terms) + 1], color="#444444", linewidth=0.8)
        axes.plot(level, len(terms) + 1, "o", color="#08306b")
        axes.text(level, len(terms) + 1, f"   {level:.1f} s", va="center", fontsize=9)
        axes.set_yticks(range(len(labels)), labels)
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(whole["paper_s"] - margin, whole["released_s"] + margin)
        axes.set_xlabel("seconds of an RL step (the axis does not start at 0)")
        axes.grid(axis="x")
        times = whole["released_s"] / whole["paper_s"]
        return (
            f"As released, a step of TLT takes {times:.2f} times as long as in its paper ({reach[0]:.2f} to "
            f"{reach[1]:.2f} by what eager decode takes)"
        )

    footer = (
        "simulated: Qwen2.5-32B, 128 x H100, TP 4, 2,048 responses a step, DeepSeek-R1 serving lengths",
        "cost: published speedups over an assumed plain step",
        f"without a CUDA graph {1e3 * ASSUMED_S:g} ms a layer (assumed; the range is +-30 %)",
        "terms switched in this order, top to bottom",
    )  # fmt: skip
    return draw_picture(build, 3.3, footer)[1].png


def slowdown(eager_s_per_layer: float) -> float:
    """Return the step as released over that as in the paper, without drift."""
    laboratory = Laboratory((f"{EAGER}={eager_s_per_layer}",))
    return float(laboratory.steps_s(()).sum() / laboratory.steps_s(tuple(TERMS)).sum())


def main() -> None:
    """Run the mixtures, write record, table and picture."""
    points = []
    for drift, sets in DRIFTS.items():
        points += decompose(Laboratory(sets), drift)
    raw = write_raw(f"{NAME}.points.jsonl", points)
    (HERE / f"{NAME}.md").write_text(table(points), encoding="utf-8")
    least, most = (round(slowdown(seconds), 3) for seconds in RANGE_S)
    (PICTURES / f"{NAME}.png").write_bytes(draw(points, (least, most)))
    whole, *terms = [row for row in points if row["drift"] == points[0]["drift"]]
    alone_s = sum(row["alone from released"]["s"] for row in terms)
    gap_s = whole["released_s"] - whole["paper_s"]
    eager_s = terms[0]["in order"]["s"]
    write(
        NAME,
        claim="TLT as released against TLT as in its paper, 32B on 128 GPUs: seconds a step by term",
        value={
            "released": whole["released_s"], "paper": whole["paper_s"],
            SLOWER: round(whole["released_s"] / whole["paper_s"], 3),
            f"the same at {1e3 * RANGE_S[0]:g} ms a layer": least,
            f"the same at {1e3 * RANGE_S[1]:g} ms a layer": most,
            SHARE: round(eager_s / gap_s, 3),
            **{TERMS[row["term"]]: row["in order"]["s"] for row in terms},
            "remainder of the terms taken alone": round(gap_s - alone_s, 2),
        },
        unit={
            OTHERS: "s a step", SLOWER: "x", SHARE: "share",
            **{f"the same at {1e3 * seconds:g} ms a layer": "x" for seconds in RANGE_S},
        },
        target="two predictions, explained by named terms that leave less than 5 % of the gap",
        met=abs(gap_s) > 1 and abs(gap_s - alone_s) < 0.05 * abs(gap_s),
        how="modelled, terms switched in a fixed order; alone and held back in released-vs-paper.md. "
        f"{eager_s / gap_s:.0%} of the gap is one assumption: {1e3 * ASSUMED_S:g} ms a layer without a CUDA "
        f"graph ({EAGER}). The "
        "latch takes nothing here: the batch of a synchronous step never rises above 32 again",
        measured_on="H100, TP 4, as published by TLT; the plain step is a roofline (assumed)",
        command=f"python -m evidence.{NAME}",
        raw=raw,
    )  # fmt: skip


if __name__ == "__main__":
    main()
