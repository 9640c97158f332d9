"""Simulates published results and says how far off: `python -m evidence.published_results [lengths|record]`.

Writes published_results.json, its points, and the table published_results.md. Instead, `lengths` makes the
length laws of evidence/published again (see `write_lengths`), and `record` all but the points from those that
are there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pandas as pd
from scipy.special import ndtri

from evidence.published_cases import CASES, Case, Measure
from evidence.recording import HERE, OTHERS, PROJECT, write, write_raw
from tlt.analysis.drawing.tables import markdown_rows
from tlt.sim.config import resolve
from tlt.sim.model.cluster import Cluster
from tlt.sim.simulation import Simulation
from tlt.sim.workload import load_workload
from tlt.traces.common.arrays import Floats
from tlt.traces.common.intervals import Estimate, mean_difference_s, speedup
from tlt.traces.common.settings import merge, settings_of
from tlt.traces.lengths.shipped import load_histogram
from tltsched.written.policy_name import PolicyName

PUBLISHED = PROJECT / "evidence" / "published"
POINTS = "published_results.points.jsonl"
CLOSE = 0.15  # a figure counts as met within this share of what was published
KEYS: dict[Measure, str] = {
    "step speedup": "step_s", "step seconds": "step_s", "rollout speedup": "rollout_s",
    "token throughput": "rollout_s", "tail cut": "tail_s",
}  # fmt: skip
HEADERS = (
    "Result", "Published", "Simulated [95 %]", "Error", "Direction right", "Setup published well enough",
    "What was assumed",
)  # fmt: skip
Point = dict[str, Any]


def simulate(settings: dict[str, Any], policy: str) -> Cluster:
    """Return the finished cluster of one policy, POLICY@SCHEDULE."""
    name = PolicyName.parse(policy)
    if isinstance(settings.get("cluster", {}).get("schedule"), dict):
        name = name.on(None)  # the settings say more than the name
    config = resolve(settings, str(name))
    return Simulation(config, load_workload(config.workload, config.run.seed)).run()


def points_of(case: Case) -> list[Point]:
    """Simulate both policies of a case; returns a row a policy and step."""
    path = PUBLISHED / f"{case.settings}.toml"
    sides = (
        ("baseline", case.baseline, case.baseline_sets, case.baseline_parts),
        ("policy", case.policy, case.policy_sets, case.policy_parts),
    )
    points: list[Point] = []
    other: dict[str, Any] = {}
    for side, policy, sets, parts in sides:
        cluster = simulate(merge(settings_of(path, sets), other), policy)
        found = [
            {"case": case.id, "side": side, "step": step, **row}
            for step, row in enumerate(_whole(_steps(cluster), parts))
        ]
        if case.rollout_share is not None and not other:
            mean_s = float(np.mean([row["rollout_s"] for row in found]))
            other = _other_phases(mean_s * (1 / case.rollout_share - 1))
            for row in found:
                row["step_s"] = round(row["rollout_s"] + other["phases"]["policy_update_s"], 3)
        points += found[case.skip_steps :]
    return points


def _whole(rows: list[dict[str, float]], parts: int) -> list[dict[str, float]]:
    """Return the steps of the source: each is the sum of `parts` simulated ones."""
    return [
        {key: round(sum(row[key] for row in rows[first : first + parts]), 3) for key in rows[first]}
        for first in range(0, len(rows), parts)
    ]


def _other_phases(seconds: float) -> dict[str, Any]:
    """Return settings under which the phases after the rollout take `seconds` in all."""
    fixed = {"reward_s": 0.0, "logprob_s": 0.0, "policy_update_s": round(seconds, 3), "weight_sync_s": 0.0}
    return {"phases": fixed}


def _steps(cluster: Cluster) -> list[dict[str, float]]:
    rows = []
    for step, responses, facts in zip(
        cluster.log.step_rows, cluster.log.responses, cluster.log.schedule_rows, strict=True
    ):
        ninth = float(np.quantile(responses["finish_s"], 0.9, method="inverted_cdf"))
        rows.append(
            {
                "rollout_s": round(step["rollout_end_s"] - step["start_s"], 3),
                "step_s": round(step["end_s"] - step["start_s"], 3),
                "tail_s": round(step["rollout_end_s"] - ninth, 3),
                "tokens": facts["response_tokens"],
            }
        )
    return rows


def estimate(case: Case, points: Sequence[Point]) -> tuple[Estimate, bool]:
    """Return the simulated figure with its interval, and whether it points the published way."""
    key = KEYS[case.measure]
    base, policy = (
        np.array([row[key] for row in points if row["case"] == case.id and row["side"] == side])
        for side in ("baseline", "policy")
    )
    count = min(len(base), len(policy))
    base, policy = base[:count], policy[:count]
    if case.measure == "token throughput":
        policy = policy * _tokens(case, points, "baseline") / _tokens(case, points, "policy")
    ratio = speedup(base, policy)
    if case.measure == "step seconds":
        return mean_difference_s(policy, np.zeros(count)), ratio.value > 1
    if case.measure == "tail cut":
        left = speedup(policy, base)
        ends = left.interval or (left.value, left.value)
        return Estimate(1 - left.value, (1 - ends[1], 1 - ends[0])), left.value < 1
    return ratio, (ratio.value > 1) == (case.published[0] > 1)


def _tokens(case: Case, points: Sequence[Point], side: str) -> float:
    """Return the tokens that one side of a case was trained on."""
    return float(sum(row["tokens"] for row in points if row["case"] == case.id and row["side"] == side))


def error_of(case: Case, value: float) -> float:
    """Return the relative distance from the published range, 0 inside."""
    low, high = case.published
    return value / (low if value < low else high) - 1 if not low <= value <= high else 0.0


def results(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return figure, error and direction of each case that has points."""
    known = {row["case"] for row in points}
    found = []
    for case in CASES:
        if case.id in known:
            figure, right = estimate(case, points)
            row = {"case": case, "figure": figure, "error": error_of(case, figure.value), "right": right}
            found.append(row)
    return found


def table(points: Sequence[Point]) -> str:
    """Return the Markdown table that follows from the points."""
    rows = [_cells(found) for found in results(points)]
    return markdown_rows(HEADERS, rows, figures=0)


def _cells(found: dict[str, Any]) -> tuple[str, ...]:
    case: Case = found["case"]
    inside = not found["error"] and case.published[0] != case.published[1]
    return (
        f"{case.result} ({case.source})",
        "-" if case.control else _range(case),
        _figure(case, found["figure"]),
        "-" if case.control else "in range" if inside else f"{found['error']:+.0%}",
        "yes" if found["right"] else "no",
        table_setup(case),
        case.assumed,
    )


def _text(case: Case, value: float) -> str:
    if case.measure == "step seconds":
        return f"{value:.1f} s"
    return f"-{value:.0%}" if case.measure == "tail cut" else f"{value:.2f}x"


def table_setup(case: Case) -> str:
    """Return whether the setup is published well enough, and what is missing."""
    if case.control:
        return f"control: {case.missing}"
    lacks = "" if case.set_up_well else f"no, lacks {', '.join(case.lacks)}: "
    return f"{lacks or 'yes; not stated: '}{case.missing}"


def _range(case: Case) -> str:
    low, high = (_text(case, end) for end in case.published)
    return low if low == high else f"{low} to {high}"


def _figure(case: Case, figure: Estimate) -> str:
    ends = figure.interval
    shown = "" if ends is None else f" [{', '.join(_text(case, end) for end in ends)}]"
    return _text(case, figure.value) + shown


def write_lengths() -> None:
    """Make the length laws that no shipped recording gives, as quantiles.

    rollpacker: log-normal through the published P75 (755-1,100 tokens, the middle) and the longest of 1,024
    responses over the median (25-32, the middle). verl, nemo-rl: r1-all times a factor under which the
    baseline generates for as long as published.
    """
    grid = (np.arange(2000) + 0.5) / 2000
    sigma = np.log(28.5) / ndtri(1 - 1 / 1024)
    _write_law("rollpacker", 927.5 * np.exp(sigma * (ndtri(grid) - ndtri(0.75))), 32_768)
    for name, settings, target_s, cap in (
        ("verl", "verl-async", 177.85, 28_672), ("nemo-rl", "nemo-rl", 100.0, 32_768),
    ):  # fmt: skip
        base = load_histogram("r1-all").quantile(grid).astype(np.float64)
        low, high = 0.1, 10.0
        for _ in range(12):
            factor = (low * high) ** 0.5
            _write_law(name, factor * base, cap)
            rows = _steps(simulate(settings_of(PUBLISHED / f"{settings}.toml", ()), "none@synchronous"))
            slow = float(np.mean([row["rollout_s"] for row in rows])) > target_s
            low, high = (low, factor) if slow else (factor, high)
        print(f"{name}: r1-all times {factor:.3f}, {np.mean([row['rollout_s'] for row in rows]):.1f} s")


def _write_law(name: str, lengths: Floats, max_response_tokens: int) -> None:
    whole = np.clip(np.rint(lengths), 1, max_response_tokens).astype(np.int64)
    frame = pd.DataFrame({"response_tokens": whole})
    frame.to_csv(PUBLISHED / f"{name}-lengths.csv", index=False)


def main() -> None:
    """Run every case and write the record."""
    write_raw(POINTS, [row for case in CASES for row in points_of(case)])
    record()


def record() -> None:
    """Write record and table from the points that are there."""
    points = [msgspec.json.decode(line) for line in (HERE / POINTS).read_bytes().splitlines()]
    (HERE / "published_results.md").write_text(table(points), encoding="utf-8")
    found = [row for row in results(points) if not row["case"].control]
    complete = [row for row in found if row["case"].set_up_well]
    close = [row for row in found if abs(row["error"]) <= CLOSE]
    write(
        "published_results",
        claim=f"{len(found)} published results simulated from their own settings",
        value={
            "direction right": sum(row["right"] for row in found),
            "setup published well enough": len(complete),
            "of these, within 15 %": sum(row in close for row in complete),
            "of the others, within 15 %": sum(row in close for row in found if row not in complete),
        },
        unit={
            OTHERS: f"of {len(found)}",
            "of these, within 15 %": f"of {len(complete)}",
            "of the others, within 15 %": f"of {len(found) - len(complete)}",
        },
        target="direction right in all; within 15 % where the setup is published well enough",
        met=all(row["right"] for row in found) and all(row in close for row in complete),
        how="modelled; published-results.md has the rule of what is published well enough, and what was "
        "assumed for each result",
        measured_on="hardware as published, by result; step times of one H100 (7B), else a roofline "
        "(assumed)",
        command="python -m evidence.published_results",
        raw=POINTS,
    )


if __name__ == "__main__":
    {"lengths": write_lengths, "record": record}.get("".join(sys.argv[1:]), main)()
