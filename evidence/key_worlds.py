"""Runs with a known truth, and the logs that verl would have written of them.

A world is a rollout cluster whose responses are decoded (the simulator, on lengths that the log does not show
and with step times that the model does not know), wait for tools and scoring, and are generated several
times over where groups are filtered out. Its truth is the gain of a policy: both are decoded alike, and a
response ends after decoding and waiting. The log states means, maxima and the keys of the world's kind. Used
by the script key_fuzz and by tests/evidence/test_key_fuzz.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tlt.sim.config import resolve
from tlt.sim.simulation import Simulation
from tlt.sim.steptimes.calibration import load
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.lengths.schema import COLUMNS, Origin, Trace

POLICY, BASE = "goodput", "none"
CALIBRATION = "vllm-0.32-h100-qwen2.5-7b"
PROMPT_TOKENS, VALIDATION_S = 100, 12.0
KINDS = (
    "plain", "tools, all keys", "tools, no slowest", "tools, turns alone", "tools, no key",
    "scoring in the loop", "generations", "generations, no key", "weights sent within",
    "a wait nobody knows", "validation",
    "milliseconds a token", "half of the cluster", "half, and stated", "asynchronous", "one step off",
    "rollout in ms", "step in ms", "all in ms", "lengths in characters",
)  # fmt: skip
ASYNCHRONOUS = ("asynchronous", "one step off")


class World(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Seconds of phases are of the whole cluster."""

    kind: str
    seed: int
    steps: int
    responses: int
    gpus: int
    mu: float
    sigma: float
    cap: int
    engine: float  # step times over those of the calibration
    parts: tuple[float, float, float]  # target, KV and drafter over that
    generations: tuple[int, ...]  # by step
    waits_s: float  # mean of what a response waits, 0: none does
    overhead_s: float  # of a rollout in which nothing is generated
    logprob_s: float
    update_s: float
    rest_s: float


class Truth(msgspec.Struct, frozen=True):
    """What the world's log is made of, and the gain that it hides. Lists are by step."""

    lengths: list[Ints]  # of the generation that was trained on
    decoding_s: list[Floats]  # of its responses, under BASE
    waiting_s: list[Floats]
    rollout_s: Floats  # of all generations
    step_s: Floats
    gain: float


def world_of(kind: str, seed: int) -> World:
    """Draw a world of a kind."""
    rng = np.random.default_rng((seed, KINDS.index(kind)))
    steps, gpus = int(rng.integers(3, 6)), int(rng.choice([2, 4, 8]))
    repeated = kind.startswith("generations")
    return World(
        kind=kind, seed=seed, steps=steps, gpus=gpus,
        responses=int(gpus * rng.integers(8, 48)),
        mu=float(rng.uniform(5.0, 6.3)), sigma=float(rng.uniform(0.5, 1.1)),
        cap=int(rng.choice([1024, 2048])),
        engine=float(np.exp(rng.normal(0.0, 0.15))),
        parts=tuple(np.exp(rng.normal(0.0, 0.02, 3)).tolist()),
        generations=tuple(rng.integers(2, 5, steps).tolist()) if repeated else (1,) * steps,
        waits_s=float(rng.uniform(2.0, 30.0)) if kind.startswith(("tools", "scoring")) else 0.0,
        overhead_s=float(rng.uniform(1.0, 6.0)) if kind in ("weights sent within", "a wait nobody knows")
        else float(rng.uniform(0.0, 0.3)),
        logprob_s=float(rng.uniform(1.0, 5.0)), update_s=float(rng.uniform(3.0, 20.0)),
        rest_s=float(rng.uniform(0.0, 2.0)) + (VALIDATION_S if kind == "validation" else 0.0),
    )  # fmt: skip


def settings_of(world: World) -> dict[str, Any]:
    """Return what the user knows and gives: hardware, step times, acceptance of alike requests."""
    return {
        "run": {"records": False, "acceptance": False, "seed": 1},
        "hardware": {"gpus": world.gpus, "tp": 1, "gpu": "H100", "model": "Qwen2.5-7B"},
        "cost": {"source": CALIBRATION},
        "acceptance": {"kind": "per_position", "survival_by_position": [0.75, 0.55, 0.4, 0.29, 0.2],
                       "request_spread": 0.0, "length_correlation": 0.0, "group_correlation": 0.0},
    }  # fmt: skip


def truth_of(world: World) -> Truth:
    """Roll the world out under both policies."""
    rng = np.random.default_rng((world.seed, 7))
    total = sum(world.generations)
    drawn = np.exp(rng.normal(world.mu, world.sigma, (total, world.responses)))
    lengths = [each.clip(4, world.cap).astype(np.int64) for each in drawn]
    waits = (
        rng.exponential(world.waits_s, (total, world.responses)) if world.waits_s else np.zeros(drawn.shape)
    )
    base, other = (_decoding_s(world, lengths, policy) for policy in (BASE, POLICY))
    ends = np.cumsum(world.generations)
    spans = [range(end - count, end) for end, count in zip(ends.tolist(), world.generations, strict=True)]

    def rollouts_s(decoded: list[Floats]) -> Floats:
        """Return the seconds of each step, [steps]: every generation ends with its last response."""
        longest_s = [float((each_s + waits[index]).max()) for index, each_s in enumerate(decoded)]
        return np.array([sum(longest_s[index] + world.overhead_s for index in span) for span in spans])

    after_s = world.logprob_s + world.update_s + world.rest_s
    last = [span[-1] for span in spans]
    rollout_s = rollouts_s(base)
    return Truth(
        [lengths[index] for index in last], [base[index] for index in last], [waits[index] for index in last],
        rollout_s, rollout_s + after_s,
        float((rollout_s + after_s).sum() / (rollouts_s(other) + after_s).sum()),
    )  # fmt: skip


def _decoding_s(world: World, lengths: list[Ints], policy: str) -> list[Floats]:
    """Return by when each response is decoded, of every generation."""
    half = world.kind.startswith("half")
    settings = settings_of(world)
    settings["hardware"]["gpus"] = max(world.gpus // 2, 1) if half else world.gpus
    settings |= {
        "workload": {"steps": len(lengths), "replay_steps": True, "max_response_tokens": world.cap},
        "cluster": {"phases": []},
    }
    simulation = Simulation(resolve(settings, policy), _trace(lengths))
    fitted = load(CALIBRATION).coefficients.times(world.engine).scaled(*world.parts)
    responses, _, steps = simulation.with_coefficients(fitted).run().tables()
    began = responses["step"].map(steps.set_index("step")["start_s"])
    seconds = (responses["finish_s"] - began).groupby(responses["step"])
    return [np.array(each) for _, each in seconds]


def _trace(lengths: list[Ints]) -> Trace:
    import pandas as pd

    count = len(lengths[0])
    rows = pd.DataFrame(
        {
            "step": np.repeat(np.arange(len(lengths)), count),
            "prompt_id": np.arange(len(lengths) * count),
            "sample": 0,
            "prompt_tokens": PROMPT_TOKENS,
            "response_tokens": np.concatenate(lengths),
            "truncated": False,
        }
    ).astype(COLUMNS)
    return Trace(rows, Origin(source="a world", kind="rollout"))


def write_log(world: World, truth: Truth, path: Path) -> None:
    """Write the console log of verl that the world would have left."""
    lines = []
    for step in range(world.steps):
        stated = _stated(world, truth, step)
        told = " - ".join(f"{name}:{value:.6g}" for name, value in stated.items())
        lines.append(f"(TaskRunner pid=7) step:{step + 1} - {told}\n")
    path.write_text("".join(lines), encoding="utf-8")


def _stated(world: World, truth: Truth, step: int) -> dict[str, float]:
    lengths = truth.lengths[step]
    scale = 4.0 if world.kind == "lengths in characters" else 1.0
    mean = float(lengths.mean())
    stated = {
        "response_length/mean": scale * mean, "response_length/max": scale * float(lengths.max()),
        "response_length/min": scale * float(lengths.min()),
        "response_length/clip_ratio": float((lengths >= world.cap).mean()),
        "prompt_length/mean": PROMPT_TOKENS,
        "timing_s/gen": float(truth.rollout_s[step]), "timing_s/old_log_prob": world.logprob_s,
        "timing_s/update_actor": world.update_s, "timing_s/step": float(truth.step_s[step]),
    }  # fmt: skip
    tokens = world.responses * (scale * mean + PROMPT_TOKENS)
    if world.kind == "milliseconds a token":
        stated["timing_per_token_ms/gen"] = 1000 * stated["timing_s/gen"] / (world.responses * mean)
    else:
        stated["perf/total_num_tokens"] = tokens
    _add_keys(world, truth, step, stated)
    return stated


def _add_keys(world: World, truth: Truth, step: int, stated: dict[str, float]) -> None:
    """Add what the kind says more, or says otherwise."""
    loop, kind = "timing_s/agent_loop", world.kind
    decoded, waited = truth.decoding_s[step], truth.waiting_s[step]
    if kind in ("tools, all keys", "tools, no slowest", "scoring in the loop"):
        name = "compute_score" if kind.startswith("scoring") else "tool_calls"
        stated[f"{loop}/generate_sequences/max"] = float(decoded.max())
        stated[f"{loop}/generate_sequences/mean"] = float(decoded.mean())
        stated[f"{loop}/generate_sequences/min"] = float(decoded.min())
        stated[f"{loop}/{name}/max"], stated[f"{loop}/{name}/mean"] = (
            float(waited.max()),
            float(waited.mean()),
        )
        if kind == "tools, all keys":
            stated[f"{loop}/slowest/generate_sequences"] = float(decoded[np.argmax(decoded + waited)])
    if kind in ("tools, turns alone", "tools, all keys", "tools, no slowest"):
        stated["num_turns/mean"] = 6.0
    if kind == "generations":
        stated["train/num_gen_batches"] = world.generations[step]
    if kind == "a wait nobody knows":
        stated["timing_s/my_sandbox"] = world.overhead_s
    if kind == "validation":
        stated["timing_s/testing"] = VALIDATION_S
    if kind == "half, and stated":
        stated["perf/throughput"] = stated["perf/total_num_tokens"] / (
            stated["timing_s/step"] * max(world.gpus // 2, 1)
        )
    if kind == "asynchronous":
        stated["timing_s/gen"], stated["fully_async/trainer/idle_ratio"] = 0.1 * stated["timing_s/gen"], 0.1
    if kind == "one step off":
        stated["timing_s/wait_prev_gen"], stated["timing_s/sync_rollout_weights"] = 1.0, 0.5
    for name in ("timing_s/gen", "timing_s/step", "timing_s/old_log_prob", "timing_s/update_actor"):
        if (
            kind == "all in ms"
            or (kind == "rollout in ms" and name.endswith("gen"))
            or (kind == "step in ms" and name.endswith("step"))
        ):
            stated[name] *= 1000.0
