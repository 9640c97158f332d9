"""What a report says that a run had, from what a live engine or a configuration calls one GPU."""

from __future__ import annotations

import pytest

from tlt.traces.runs.runfolder import Summary


@pytest.mark.parametrize(
    ("gpu", "workers", "per_worker", "words"),
    [
        ("H100", 4, 8, "32 x H100"),
        ("one NVIDIA H200", 2, 1, "2 x NVIDIA H200"),
        ("2 x NVIDIA H200 (TP 2)", 3, 2, "6 x NVIDIA H200"),
        ("CPU of a kind, 1 thread", 2, 1, "2 x CPU of a kind, 1 thread"),
        ("CPU of a kind, 2 threads (TP 2)", 1, 2, "1 x CPU of a kind, 2 threads (TP 2)"),
    ],
)
def test_hardware_counts_every_gpu_once(gpu: str, workers: int, per_worker: int, words: str) -> None:
    summary = Summary(
        kind="measured", name="run", policy="none", model="tiny", gpu=gpu, workers=workers,
        gpus_per_worker=per_worker, steps=1, wall_s=1.0, response_tokens=1, cost_source="", lengths_source="",
        acceptance_source="", seed=0, tool_version="0",
    )  # fmt: skip
    assert summary.hardware == words
