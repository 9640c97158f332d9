"""Claims about simulated sessions: routing rules, both modes, what speculation gains with waits."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from typing import Any

import msgspec
import numpy as np

from evidence.recording import HERE, OTHERS, PROJECT, write, write_raw
from tlt.analysis.drawing.tables import markdown_rows
from tlt.sim.config import resolve
from tlt.sim.model.cluster import Cluster
from tlt.sim.simulation import Simulation
from tlt.sim.workload import SessionTrace
from tlt.traces.common.settings import merge
from tlt.traces.lengths.schema import Origin
from tlt.traces.sessions.files import read_sessions, sessions_path
from tlt.traces.sessions.generate import generate_sessions
from tlt.traces.sessions.laws import Constant, Lognormal, Quantity
from tlt.traces.sessions.schema import Sessions
from tlt.traces.sessions.session_laws import SessionLaws
from tlt.traces.sessions.turns import SessionLimits
from tltsched.sessions.routing import RULE_NAMES

GB = 1e9
DRAWN, RECORDED = "610 drawn", "office-work"
# 610 sessions with a median of 29 turns and at most 99, as published of recorded coding agents
# (NVIDIA-NeMo/RL#3663); tokens and waits are assumed.
CODING = SessionLaws(
    origin=Origin(source="assumed: coding agents", kind="generated"),
    turns=Quantity(law=Lognormal(median=29, sigma=0.6)),
    prompt_tokens=Quantity(law=Constant(value=2_000)),
    input_tokens=Quantity(law=Lognormal(median=250, sigma=1.0)),
    response_tokens=Quantity(law=Lognormal(median=120, sigma=0.8)),
    last_response_tokens=Quantity(law=Lognormal(median=250, sigma=0.6)),
    wait_s=Quantity(law=Lognormal(median=2.0, sigma=1.2)),
    limits=SessionLimits(max_turns=99, max_context_tokens=65_536),
)
# Few turns, as of search and calculators.
SEARCH = msgspec.structs.replace(
    CODING,
    turns=Quantity(law=Lognormal(median=5, sigma=0.4)),
    prompt_tokens=Quantity(law=Constant(value=400)),
    input_tokens=Quantity(law=Lognormal(median=200, sigma=0.5)),
    limits=SessionLimits(max_turns=12, max_context_tokens=16_384),
)
CLUSTER: dict[str, Any] = {
    "hardware": {"gpus": 8, "tp": 1, "model": "Qwen2.5-7B", "gpu": "H100"},
    "workload": {"steps": 1, "sessions": "drawn"},
    "engine": {"max_running": 64},
    "cluster": {"phases": []},
}


def simulated(
    sessions: Sessions, settings: dict[str, Any], policy: str = "none"
) -> tuple[Simulation, Cluster]:
    """Simulate sessions on CLUSTER with some settings changed."""
    simulation = Simulation(resolve(merge(CLUSTER, settings), policy), SessionTrace.of(sessions))
    return simulation, simulation.run()


def replay_facts(source: str, rule: str, wait_kv: str) -> dict[str, Any]:
    """Simulate sessions, 610 drawn ones or recorded ones by name, under a routing rule.

    Returns figures of the run and of this process.
    """
    drawn = source == DRAWN
    sessions = generate_sessions(CODING, 1, 610, 1, 3) if drawn else read_sessions(sessions_path(source))
    settings: dict[str, Any] = {"cluster": {"routing": rule}, "engine": {"tool_wait_kv": wait_kv}}
    if not drawn:
        settings["hardware"] = {"gpus": 2}
    begun_s, wall_s = time.process_time(), time.perf_counter()
    simulation, cluster = simulated(sessions, settings)
    took_s, wall_s = time.process_time() - begun_s, time.perf_counter() - wall_s
    facts = simulation.assembly().session_facts(cluster)
    assert facts is not None
    tool_wait_s = sum(
        end - begin
        for worker in cluster.workers
        for cause, begin, end in zip(
            worker.timeline.causes, [0.0, *worker.timeline.ends_s], worker.timeline.ends_s, strict=False
        )
        if cause == "tool_wait"
    )
    return {
        "sessions": source,
        "rule": rule,
        "tool_wait_kv": wait_kv,
        "turns": facts.turns,
        "median_turns": float(np.median(sessions.turns)),
        "makespan_s": float(cluster.env.now),
        "hit_share": facts.hit_share,
        "again_tokens": facts.again_tokens,
        "idle_for_tools": tool_wait_s / (len(cluster.workers) * float(cluster.env.now)),
        "decision_intervals": cluster.log.decisions,
        "process_s": took_s,
        "wall_s": wall_s,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def session_routing() -> None:
    """610 sessions, and 45 recorded ones, through each routing rule, each in a process of its own."""
    rows = []
    cases = [(source, rule, "keep") for source in (DRAWN, RECORDED) for rule in RULE_NAMES]
    for case in [*cases, (DRAWN, "sticky", "drop")]:
        words = (sys.executable, "-m", "evidence.session_claims", *case)
        told = subprocess.run(words, check=True, cwd=PROJECT, stdout=subprocess.PIPE)
        rows.append(msgspec.json.decode(told.stdout))
        print(rows[-1], flush=True)
    write_routing(rows)


def write_routing(rows: list[dict[str, Any]]) -> None:
    """Write the record and the table of replays, each as replay_facts has it."""
    heads = (
        "Sessions", "Turns go", "Makespan, s", "Found in caches", "Computed again, tokens",
        "GPUs idle for tools", "Replay, s of processor time", "Memory, MB",
    )  # fmt: skip
    cells = [
        (
            row["sessions"],
            row["rule"] + ("" if row["tool_wait_kv"] == "keep" else ", caches dropped"),
            f"{row['makespan_s']:,.0f}",
            f"{row['hit_share']:.1%}",
            f"{row['again_tokens']:,}",
            f"{row['idle_for_tools']:.1%}",
            f"{row['process_s']:.0f}",
            f"{row['peak_bytes'] / 1e6:,.0f}",
        )
        for row in rows
    ]
    (HERE / "session_routing.md").write_text(markdown_rows(heads, cells) + "\n", encoding="utf-8")
    value: dict[str, Any] = {}
    for row in rows:
        name = row["rule"] if row["tool_wait_kv"] == "keep" else f"{row['rule']}, caches dropped"
        name = name if row["sessions"] == DRAWN else f"{row['sessions']}, {name}"
        value |= {
            f"{name}: makespan": round(row["makespan_s"], 1),
            f"{name}: found in caches": round(row["hit_share"], 4),
            f"{name}: computed again": row["again_tokens"],
        }
    value["longest replay"] = round(max(row["process_s"] for row in rows), 1)
    value["most memory"] = round(max(row["peak_bytes"] for row in rows) / GB, 3)
    units = {name: "share of the contexts" for name in value if name.endswith("found in caches")}
    units |= {name: "tokens" for name in value if name.endswith("computed again")} | {"most memory": "GB"}
    write(
        "session_routing",
        timed=True,
        claim=f"610 sessions, {rows[0]['turns']:,} turns and {rows[0]['median_turns']:.0f} in the median, "
        "through each routing rule",
        value=value,
        unit=units | {OTHERS: "s"},
        target="none: how the rules differ, and what a replay takes of processor time and memory",
        met=None,
        how="modelled: numbers of turns as published of recorded coding agents (NVIDIA-NeMo/RL#3663), tokens "
        "and waits assumed; office-work, 45 recorded sessions on two workers; a 7B model on H100 GPUs, no "
        "speculation; jump mode",
        measured_on="no GPU: the simulator itself",
        raw=write_raw("session_routing.points.jsonl", rows),
    )


DRAWS = 128  # of a case whose turns may go elsewhere from draw to draw


def session_modes() -> None:
    """Jump mode against every engine step drawn, where sessions come and go.

    Where drafts are drawn and turns are routed by load or in turns, a draw more or less sends a turn to
    another worker, and hits of a small rollout differ by some points between two draws of the same mode. So
    each mode is drawn often there, and the means are compared; elsewhere a few draws say as much.
    """
    rng = np.random.default_rng(17)
    rows: list[dict[str, Any]] = []
    for seed in range(8):
        sessions = generate_sessions(SEARCH, 1, int(rng.integers(3, 7)), 2, seed)
        policy = ("none", "static:2", "static:4", "tlt_chains", "goodput")[seed % 5]
        settings: dict[str, Any] = {
            "hardware": {"gpus": int(rng.integers(1, 4))},
            "engine": {"max_running": int(rng.choice([4, 8, 64]))},
            "cluster": {"routing": str(rng.choice(sorted(RULE_NAMES)))},
            "tools": {"wait_scale": float(rng.choice([0.1, 0.5, 1.0]))},
        }
        draws = 1 if policy == "none" else DRAWS if settings["hardware"]["gpus"] > 1 else 8
        found = {mode: drawn_facts(sessions, settings, policy, mode, draws) for mode in ("jump", "exact")}
        rows.append({"policy": policy, "settings": settings, "draws": draws, **found})
    write_modes(rows)


def drawn_facts(
    sessions: Sessions, settings: dict[str, Any], policy: str, mode: str, draws: int
) -> dict[str, list[float]]:
    """Return makespans and hits of several draws of a mode."""
    facts: dict[str, list[float]] = {"makespan_s": [], "hit_share": []}
    for seed in range(draws):
        simulation, cluster = simulated(
            sessions, merge(settings, {"run": {"mode": mode, "seed": seed}}), policy
        )
        told = simulation.assembly().session_facts(cluster)
        assert told is not None
        facts["makespan_s"].append(float(cluster.env.now))
        facts["hit_share"].append(told.hit_share)
    return facts


def write_modes(rows: list[dict[str, Any]]) -> None:
    """Write the record of means by case and mode."""
    means = {
        name: np.array([[np.mean(row[mode][name]) for mode in ("jump", "exact")] for row in rows])
        for name in ("makespan_s", "hit_share")
    }
    off = means["makespan_s"][:, 0] / means["makespan_s"][:, 1] - 1
    hits = np.diff(means["hit_share"], axis=1)[:, 0]
    often = [
        np.array([row[mode]["hit_share"] for mode in ("jump", "exact")]) for row in rows if row["draws"] > 1
    ]
    error = max(float(np.sqrt(each.var(axis=1, ddof=1).sum() / each.shape[1])) for each in often)
    write(
        "session_modes",
        claim="makespan and cache hits of the jumping mode against every engine step drawn, 8 rollouts "
        "of 6 to 12 sessions under five policies and four routing rules, means of draws",
        value={
            "makespan, mean absolute difference": round(float(np.abs(off).mean()), 5),
            "makespan, largest": round(float(np.abs(off).max()), 5),
            "hits, largest": round(float(np.abs(hits).max()), 5),
            "hits, largest standard error of a difference": round(error, 5),
            "hits, deviation of a single draw": round(
                max(float(each.std(axis=1, ddof=1).max()) for each in often), 5
            ),
        },
        unit={OTHERS: "share of the makespan"}
        | dict.fromkeys(
            (
                "hits, largest",
                "hits, largest standard error of a difference",
                "hits, deviation of a single draw",
            ),
            "share of the contexts",
        ),
        target="makespan: mean absolute difference at most 0.5 %; hits within 1 point",
        met=bool(np.abs(off).mean() <= 0.005 and np.abs(hits).max() <= 0.01),
        how=f"measured, the same seeds in both modes (their draws differ): {DRAWS} where drafts are drawn on "
        "two workers or more, 8 on one, 1 without drafts; single draws, which were compared before, differed "
        "by up to 3.8 points",
        measured_on="no GPU: the simulator itself",
        raw=write_raw("session_modes.points.jsonl", rows),
    )


WAIT_SCALES = (0.0, 0.25, 1.0, 4.0)
GAINING = ("none", "static:4", "goodput")


def session_speculation() -> None:
    """What policies gain where tools take more or less time: batches shrink and grow."""
    sessions = generate_sessions(SEARCH, 1, 64, 4, 5)
    rows = []
    for scale in WAIT_SCALES:
        for policy in GAINING:
            settings = {"tools": {"wait_scale": scale}, "engine": {"max_running": 128}}
            cluster = simulated(sessions, settings, policy)[1]
            state = cluster.log.step_rows[0]
            rows.append(
                {
                    "wait_scale": scale,
                    "policy": policy,
                    "makespan_s": float(cluster.env.now),
                    "largest_draft_batch": cluster.log.largest_draft_batch,
                    "request_steps": int(state["request_steps"]),
                }
            )
            print(rows[-1], flush=True)
    write_speculation(rows)


def write_speculation(rows: list[dict[str, Any]]) -> None:
    """Write the record and the table of rollouts by policy and length of waits."""
    seconds = {(row["wait_scale"], row["policy"]): row["makespan_s"] for row in rows}
    gains = {at: seconds[at[0], "none"] / took for at, took in seconds.items()}
    drafting = GAINING[1:]
    heads = ("Waits, times those assumed", "none, s", *(f"{policy}, x" for policy in drafting))
    cells = [
        (
            f"{scale:g}",
            f"{seconds[scale, 'none']:.1f}",
            *(f"{gains[scale, each]:.2f}" for each in drafting),
        )
        for scale in WAIT_SCALES
    ]
    (HERE / "session_speculation.md").write_text(markdown_rows(heads, cells) + "\n", encoding="utf-8")
    value = {
        f"{policy}, waits x {scale:g}": round(gains[scale, policy], 3)
        for policy in drafting
        for scale in WAIT_SCALES
    }
    write(
        "session_speculation",
        claim="what speculation gains over none in a rollout of 256 sessions of about 5 turns, their tools "
        "taking no time, a quarter, the whole and four times the assumed waits (median 2 s)",
        value=value,
        unit={OTHERS: "x"},
        target="none: how the gain changes with waits",
        met=None,
        how="modelled: sessions and acceptance assumed (the defaults of a simulation); a 7B model on eight "
        "H100 GPUs, a worker each; jump mode",
        measured_on="no GPU: the simulator itself",
        raw=write_raw("session_speculation.points.jsonl", rows),
    )


SESSIONS = (session_routing, session_modes, session_speculation)

if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(replay_facts(*sys.argv[1:4])))
