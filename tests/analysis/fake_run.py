"""Small run folders with every cause, made by arithmetic: no simulator, no randomness that is not seeded.

Each RL step follows one script. A worker prefills, decodes until few requests are left, drafts to the end,
and then waits (worker 0 the shortest time) or trains the drafter. The phases follow on all workers at once.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from tlt.traces.runs.runfolder import (
    COST_DRAW_COLUMNS,
    Advice,
    BatchAdvice,
    Comparison,
    RunFolder,
    Summary,
    write_json,
)

CAP_TOKENS = 8_000
TOKEN_S = 0.02


def _lengths(steps: int, requests: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.minimum(rng.lognormal(6.5, 1.1, size=(steps, requests)).astype(int) + 1, CAP_TOKENS)


class _Book:
    def __init__(self) -> None:
        self.rows: list[tuple[int, str, int, float, float]] = []

    def add(
        self, worker: int, step: int, start_s: float, spans: list[tuple[str, float]], end_s: float
    ) -> None:
        """Book the spans (cause, end) one after the other and the last of them up to `end_s`."""
        at_s = start_s
        for cause, until_s in spans:
            until_s = min(max(until_s, at_s), end_s)
            self.rows.append((worker, cause, step, at_s, until_s))
            at_s = until_s
        worker_, cause, step_, from_s, _ = self.rows.pop()
        self.rows.append((worker_, cause, step_, from_s, end_s))


def write_run(
    path: Path,
    *,
    name: str = "fake",
    policy: str = "fake policy",
    workers: int = 4,
    steps: int = 3,
    requests_per_worker: int = 16,
    speed: float = 1.0,
    speculates: bool = True,
    trains: bool = True,
    seed: int = 1,
    config: object = None,
    warnings: tuple[str, ...] = ("Rewards take no time: assumed.",),
) -> RunFolder:
    """Write a run folder whose rollouts are `speed` times as fast as those of speed 1 and return it."""
    lengths = _lengths(steps, workers * requests_per_worker, seed)
    owner = np.arange(lengths.shape[1]) % workers
    book, responses, step_rows = _Book(), [], []
    at_s = 0.0
    for step in range(steps):
        start_s = at_s
        wobble = speed * (1 + 0.05 * np.sin(step)) if speed != 1.0 else 1.0
        finish_s = start_s + 1.0 + lengths[step] * TOKEN_S / wobble
        rollout_end_s = float(finish_s.max()) + 0.5
        at_s = rollout_end_s + 18.0
        responses += _response_rows(step, start_s, owner, finish_s, lengths[step])
        for worker in range(workers):
            spans = _rollout(
                worker, start_s, np.sort(finish_s[owner == worker]), rollout_end_s, speculates, trains
            )
            book.add(worker, step, start_s, spans, rollout_end_s)
            book.add(worker, step, rollout_end_s, _phases(rollout_end_s, trains), at_s)
        engine_steps = int(lengths[step].sum() // 6) if speculates else 0
        accepted = int(engine_steps * (2.2 + 0.1 * np.sin(step)))
        version = step // 2 if trains else (0 if speculates else -1)
        age = step % 2 if trains else step
        step_rows.append((step, start_s, rollout_end_s, at_s, engine_steps, accepted, version, age, 900))
    folder = RunFolder(path)
    summary = Summary(
        kind="simulated",
        name=name,
        policy=policy,
        model="fake-7b",
        gpu="H100",
        workers=workers,
        gpus_per_worker=4,
        steps=steps,
        wall_s=at_s,
        response_tokens=int(lengths.sum()),
        cost_source="assumed: the arithmetic of a test",
        lengths_source="generated: log-normal, cap 8,000",
        acceptance_source="assumed: 3.2 with bonus",
        seed=seed,
        tool_version="0",
        warnings=warnings,
    )
    folder.write(summary, *_tables(responses, book.rows, step_rows))
    default = {"cluster": {"workers": workers}, "speculation": {"threshold": 8}}
    write_json(path / "resolved_config.json", default if config is None else config)
    return folder


def _response_rows(
    step: int, start_s: float, owner: np.ndarray, finish_s: np.ndarray, lengths: np.ndarray
) -> list[tuple]:
    return [
        (step, request, request // 8, worker, 200, length, length == CAP_TOKENS, start_s, float(done_s))
        for request, (worker, done_s, length) in enumerate(
            zip(owner, finish_s, lengths.tolist(), strict=True)
        )
    ]


def _rollout(
    worker: int, start_s: float, ends: np.ndarray, rollout_end_s: float, speculates: bool, trains: bool
) -> list[tuple[str, float]]:
    """Return the spans of a worker whose requests finish at `ends`, as (cause, end)."""
    few_s, idle_s = float(ends[len(ends) // 2]), float(ends[-1])
    spans = [("prefill", start_s + 1.0), ("decode", few_s)]
    if speculates:
        spans += [("recompute", few_s + 0.4), ("decode_off", few_s + 0.8), ("switch", few_s + 1.2)]
    spans += [("speculate" if speculates else "decode", idle_s)]
    if trains and worker > 0:
        spans += [("tail_idle", idle_s + 2.0), ("drafter_activation", idle_s + 4.0)]
        spans += [("drafter_training", rollout_end_s - 0.5), ("drafter_stop", rollout_end_s - 0.1)]
    return [*spans, ("preempt_wait" if trains and worker == 0 else "tail_idle", rollout_end_s)]


def _phases(rollout_end_s: float, trains: bool) -> list[tuple[str, float]]:
    spans = [("drafter_publish", rollout_end_s + 0.5)] if trains else []
    spans += [("reward", rollout_end_s + 4.0), ("logprob", rollout_end_s + 8.0)]
    return [*spans, ("policy_update", rollout_end_s + 16.0), ("weight_sync", rollout_end_s + 18.0)]


def _tables(responses: list, intervals: list, steps: list) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    response_names = "step request group worker prompt_tokens response_tokens truncated start_s finish_s"
    step_names = (
        "step start_s rollout_end_s end_s request_steps accepted_tokens drafter_version "
        "drafter_age_steps trained_tokens"
    )
    return (
        pd.DataFrame(responses, columns=response_names.split()),
        pd.DataFrame(intervals, columns=["worker", "cause", "step", "start_s", "end_s"]),
        pd.DataFrame(steps, columns=step_names.split()),
    )


def write_comparison(path: Path, policies: dict[str, dict] | None = None, **common: object) -> Path:
    """Write a comparison folder: baseline `none`, and two policies that are faster by 1.3 and 2.0."""
    chosen = {
        "none": {"speculates": False, "trains": False},
        "tlt": {"speed": 1.3},
        "goodput": {"speed": 2.0, "trains": False},
    }
    chosen = policies if policies is not None else chosen
    for name, options in chosen.items():
        write_run(path / name, **({"name": name, "policy": name} | common | options))
    write_json(path / "comparison.json", Comparison(name="three policies", runs=tuple(chosen)))
    return path


def batch_advice(requests: int, gain: float, spread: float = 0.1, **changes: object) -> BatchAdvice:
    """Return advice for one batch size whose interval reaches `spread` to both sides."""
    row = BatchAdvice(
        requests=requests,
        context_tokens=8_000 / requests,
        draft_config="10_8_16",
        gain=gain,
        gain_low=gain - spread,
        gain_high=gain + spread,
        runner_up="8_8_16",
        runner_up_lost=0.02,
        regret=0.001,
        regret_high=0.008,
        extrapolated=False,
    )
    return msgspec.structs.replace(row, **changes)


def advice_of(*rows: BatchAdvice) -> Advice:
    """Return advice with an error of 4.2 %."""
    return Advice(cost_error=0.042, cost_error_source="leave one out: fake calibration", rows=rows)


def write_recommendation(
    path: Path,
    policies: dict[str, dict] | None = None,
    factors: dict[str, list[float]] | None = None,
    *,
    draws: int = 40,
    advice: Advice | None = None,
    **common: object,
) -> Path:
    """Write a comparison with advice and step times under drawn costs.

    Under draw n all times of a policy are those of its run times its n-th factor; without factors all
    policies have the same ones.
    """
    write_comparison(path, policies, **common)
    chosen = advice_of(batch_advice(1, 1.8), batch_advice(8, 1.3), batch_advice(64, 0.95))
    write_json(path / "advice.json", advice if advice is not None else chosen)
    frames = []
    for folder in sorted(file.parent for file in path.glob("*/summary.json")):
        steps = RunFolder(folder).steps()
        scales = factors[folder.name] if factors else [1 + 0.01 * (n % 5) for n in range(draws)]
        for draw, scale in enumerate([1.0, *scales]):
            seconds = (steps["end_s"] - steps["start_s"]) * scale
            rows = {"draw": draw, "run": folder.name, "step": steps["step"], "step_s": seconds}
            frames.append(pd.DataFrame(rows))
    pd.concat(frames, ignore_index=True).astype(COST_DRAW_COLUMNS).to_parquet(path / "cost_draws.parquet")
    return path


def with_summary(folder: RunFolder, **changes: object) -> Summary:
    """Return the summary of a folder with fields replaced."""
    return msgspec.structs.replace(folder.summary(), **changes)
