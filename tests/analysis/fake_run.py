"""Small run folders with every cause, made by arithmetic: no simulator, no randomness that is not seeded.

Each RL step follows one script. A worker prefills, decodes until few requests are left, drafts to the end,
and then waits (worker 0 the shortest time) or trains the drafter. The phases follow on all workers at once.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from traces.runfolder import Comparison, RunFolder, Summary, write_json

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
    book, responses, step_rows = _Book(), [], []
    at_s = 0.0
    for step in range(steps):
        start_s = at_s
        owner = np.arange(lengths.shape[1]) % workers
        wobble = speed * (1 + 0.05 * np.sin(step)) if speed != 1.0 else 1.0
        finish_s = start_s + 1.0 + lengths[step] * TOKEN_S / wobble
        rollout_end_s = float(finish_s.max()) + 0.5
        for request, (worker, done_s) in enumerate(zip(owner, finish_s, strict=True)):
            length = int(lengths[step, request])
            responses.append(
                (
                    step,
                    request,
                    request // 8,
                    worker,
                    200,
                    length,
                    length == CAP_TOKENS,
                    start_s,
                    float(done_s),
                )
            )
        for worker in range(workers):
            ends = np.sort(finish_s[owner == worker])
            few_s = float(ends[len(ends) // 2])
            spans = [("prefill", start_s + 1.0), ("decode", few_s)]
            if speculates:
                spans += [("recompute", few_s + 0.4), ("decode_off", few_s + 0.8), ("switch", few_s + 1.2)]
            spans += [("speculate" if speculates else "decode", float(ends[-1]))]
            if trains and worker > 0:
                idle_s = float(ends[-1])
                spans += [("tail_idle", idle_s + 2.0), ("drafter_activation", idle_s + 4.0)]
                spans += [("drafter_training", rollout_end_s - 0.5), ("drafter_stop", rollout_end_s - 0.1)]
            spans += [("preempt_wait" if trains and worker == 0 else "tail_idle", rollout_end_s)]
            book.add(worker, step, start_s, spans, rollout_end_s)
            phases = [("drafter_publish", rollout_end_s + 0.5)] if trains else []
            phases += [(cause, rollout_end_s + 4.0 * n) for n, cause in enumerate(("reward", "logprob"), 1)]
            phases += [("policy_update", rollout_end_s + 16.0), ("weight_sync", rollout_end_s + 18.0)]
            book.add(worker, step, rollout_end_s, phases, rollout_end_s + 18.0)
        at_s = rollout_end_s + 18.0
        cycles = int(lengths[step].sum() // 6) if speculates else 0
        version = step // 2 if trains else (0 if speculates else -1)
        age = step % 2 if trains else step
        step_rows.append(
            (
                step,
                start_s,
                rollout_end_s,
                at_s,
                cycles,
                int(cycles * (2.2 + 0.1 * np.sin(step))),
                version,
                age,
                900,
            )
        )
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
    settings = (
        {"cluster": {"workers": workers}, "speculation": {"threshold": 8}} if config is None else config
    )
    write_json(path / "resolved_config.json", settings)
    return folder


def _tables(responses: list, intervals: list, steps: list) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    response_names = "step request group worker prompt_tokens response_tokens capped start_s finish_s"
    step_names = (
        "step start_s rollout_end_s end_s request_cycles accepted_tokens drafter_version "
        "drafter_age_steps trained_tokens"
    )
    return (
        pd.DataFrame(responses, columns=response_names.split()),
        pd.DataFrame(intervals, columns=["worker", "cause", "step", "start_s", "end_s"]),
        pd.DataFrame(steps, columns=step_names.split()),
    )


def write_comparison(path: Path, arms: dict[str, dict] | None = None, **common: object) -> Path:
    """Write a comparison folder: baseline `none`, and two arms that are faster by 1.3 and 2.0."""
    chosen = {
        "none": {"speculates": False, "trains": False},
        "tlt": {"speed": 1.3},
        "goodput": {"speed": 2.0, "trains": False},
    }
    chosen = arms if arms is not None else chosen
    for name, options in chosen.items():
        write_run(path / name, **({"name": name, "policy": name} | common | options))
    write_json(path / "comparison.json", Comparison(name="three policies", runs=tuple(chosen)))
    return path


def with_summary(folder: RunFolder, **changes: object) -> Summary:
    """Return the summary of a folder with fields replaced."""
    return msgspec.structs.replace(folder.summary(), **changes)
