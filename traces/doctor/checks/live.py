"""What engines tell only while they run: queues beside idle engines, preemptions, graphs, slower steps."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tlt.traces.common.arrays import Floats
from tlt.traces.doctor.base import CannotRunError, Check, Limits, Sign, grade
from tlt.traces.doctor.needs import need_live, some, stretches
from tlt.traces.doctor.subject import Member, Subject
from tlt.traces.runs.engine_steps import cells

STARVED_NOTICE, STARVED_PROBLEM = 0.15, 0.4  # of the time that is looked at
STORM_NOTICE, STORM_PROBLEM = 0.1, 0.5  # preemptions over the largest batch
BARE_NOTICE, BARE_PROBLEM = 0.2, 0.5  # of the decode time of engines that have graphs
SLOWER_NOTICE, SLOWER_PROBLEM = 1.25, 1.5  # engine steps at the same batch, context and K
FEWEST_ENGINE_STEPS = 8  # of the newest step, and of those before it, that are alike


def _starving(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    """Find engines without requests while others of the job have some that wait."""
    del subject, limits
    run, live = need_live(member)
    if run.summary.workers < 2:
        raise CannotRunError("one engine")
    starved = {worker: _starved_s(run.steps, live, worker) for worker in range(run.summary.workers)}
    all_s = float((run.steps["rollout_end_s"] - run.steps["start_s"]).sum())
    worker = max(starved, key=lambda each: starved[each])
    share = starved[worker] / all_s if all_s > 0 else 0.0
    severity = grade(share, STARVED_NOTICE, STARVED_PROBLEM)
    if severity is None:
        return []
    most = int(live["waiting"][live["worker"] != worker].max())
    return [
        Sign(
            severity=severity,
            found=f"engine {worker} had nothing to do in {share:.0%} of {all_s:,.1f} s while up to {most:,} "
            "requests waited at others",
            why="What waits elsewhere could run there at once: the step ends later than it must.",
            todo="Check the load balancer and its affinity (sticky sessions, prefix routing, a router that "
            "took the engine off after it slept), or let engines take requests from one queue.",
            source=f"batch and waiting requests of steps {some(run.steps['step'].tolist())}",
        )
    ]  # fmt: skip


def _starved_s(steps: pd.DataFrame, live: pd.DataFrame, worker: int) -> float:
    """Return the seconds in which a worker rested and another had requests that waited."""
    total = 0.0
    for step, start_s, end_s in steps[["step", "start_s", "rollout_end_s"]].itertuples(index=False):
        rows = live[live["step"] == step]
        own = rows[(rows["worker"] == worker) & (rows["batch"] > 0)]
        begins, ends = own["t_s"].to_numpy(), (own["t_s"] + own["seconds"]).to_numpy()
        others = rows[(rows["worker"] != worker) & (rows["waiting"] > 0)]
        queued = [
            _rest(row.t_s, min(row.t_s + row.seconds, end_s), begins, ends) for row in others.itertuples()
        ]
        by_other = pd.Series(queued, dtype=np.float64).groupby(others["worker"].to_numpy()).sum()
        total += min(float(by_other.max()), end_s - start_s) if len(by_other) else 0.0
    return total


def _rest(low_s: float, high_s: float, begins: Floats, ends: Floats) -> float:
    """Return the part of an interval that lies in none of others."""
    covered = np.clip(np.minimum(ends, high_s) - np.maximum(begins, low_s), 0.0, None).sum()
    return max(high_s - low_s - float(covered), 0.0)


def _storm(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    run, live = need_live(member)
    largest = live.groupby("worker")["batch"].max().sum()
    count = int(live["preempted"].sum())
    severity = grade(count / max(float(largest), 1.0) / len(run.steps), STORM_NOTICE, STORM_PROBLEM)
    if severity is None:
        return []
    return [
        Sign(
            severity=severity,
            found=f"{count:,} preemptions while at most {largest:,.0f} requests ran at once",
            why="The KV cache is too small for what runs at once: requests are thrown out and prefilled "
            "again.",
            todo="Give the cache more memory, lower max_num_seqs, or spread long responses.",
            source=f"preemptions of steps {some(run.steps['step'].tolist())}",
        )
    ]


def _graphs(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    del subject, limits
    run, live = need_live(member)
    decode = live[(live["prompt_tokens"] == 0) & (live["graph"] != "")]
    if decode.empty or not (decode["graph"] != "NONE").any():
        raise CannotRunError("the engine does not tell which graphs it ran, or has none (cudagraph_metrics)")
    newest = decode[decode["step"] == int(run.steps["step"].max())]
    bare = newest[newest["graph"] == "NONE"]
    share = float(bare["seconds"].sum()) / max(float(newest["seconds"].sum()), 1e-12)
    severity = grade(share, BARE_NOTICE, BARE_PROBLEM)
    if severity is None:
        return []
    batches = f"{bare['batch'].min():.0f} to {bare['batch'].max():.0f}"
    return [
        Sign(
            severity=severity,
            found=f"{share:.0%} of the decode time of step {run.steps['step'].max()} ran without a CUDA "
            f"graph, at batches of {batches}",
            why="Kernels are launched one by one: small batches take several times as long.",
            todo="Have graphs captured for these batches and each K (cudagraph_capture_sizes), and check "
            "what changed: LoRA, a larger K, enforce_eager.",
            source=f"graph of {len(newest):,} decode engine steps",
        )
    ]  # fmt: skip


def _slower(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    """Hold the engine steps of the newest step against those before it, at like batch, context and K."""
    del subject, limits
    run, _ = need_live(member)
    rows, source = stretches(run)
    rows = rows.assign(cell=cells(rows), each=rows["seconds"] / rows["engine_steps"])
    new = rows["step"] == run.steps["step"].max()
    keys = ["draft_config", "cell"]
    groups = [part.groupby(keys) for part in (rows[new], rows[~new])]
    after, before = (
        group["each"].median()[group["engine_steps"].sum() >= FEWEST_ENGINE_STEPS] for group in groups
    )
    ratio = (after / before).dropna()
    if ratio.empty:
        raise CannotRunError("no engine steps of earlier steps at like batch, context and K")
    weight = rows[new].groupby(keys)["engine_steps"].sum().reindex(ratio.index)
    slower = float((ratio * weight).sum() / weight.sum())
    severity = grade(slower, SLOWER_NOTICE, SLOWER_PROBLEM)
    if severity is None:
        return []
    return [
        Sign(
            severity=severity,
            found=f"engine steps take {slower:.2f} times as long as in the steps before, at the same batch, "
            "context and K",
            why="A fall-back from CUDA graphs, something else on the GPU, or clocks that were lowered look "
            "alike.",
            todo="Check graphs first (enforce_eager, capture sizes after a restart or a wake), then "
            "nvidia-smi for other processes and clocks.",
            source=f"{source}: {int(weight.sum()):,} engine steps in {len(ratio)} groups of like ones",
        )
    ]


CHECKS = (
    Check(name="starving", looks_for="an engine without requests while others queue", examine=_starving),
    Check(name="preemption-storm", looks_for="requests that are thrown out and filled again", examine=_storm),
    Check(name="graph-fallback", looks_for="decoding without CUDA graphs", examine=_graphs),
    Check(name="slower-engine-steps", looks_for="engine steps slower than before", examine=_slower),
)
