"""Does an exported table pay? `python -m evidence.exported_table FOLDER CALIBRATION`

FOLDER is one of `tlt real model SmolLM2-135M`, CALIBRATION of `tlt real calibrate` on this machine. The table
comes from `tlt sim recommend` and `tlt sim export`, and vLLM as it is on the index loads it: none of this
project's code runs in the engines. Each policy has a process of its own, they take turns, and every policy
generates the same forced lengths with the same synthetic acceptance.

Writes exported_table.json. Needs the extra real-cpu.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from evidence.recording import OTHERS, PROJECT, device, tlt, write, write_raw
from tlt.realrun.config import DrafterConfig, EngineConfig, ModelConfig, RealConfig, WorkloadConfig
from tlt.realrun.engine import vllm_compat
from tlt.realrun.engine.vllm_settings import engine_arguments
from tlt.realrun.replay.workload import RecordedLengths

SURVIVAL = (0.8, 0.64, 0.5, 0.4)
STATIC = (1, 2, 3, 4)
REQUESTS, ROLLOUTS, ROUNDS = 16, 3, 5


def config_of(folder: str) -> RealConfig:
    """Return the settings that all policies share."""
    return RealConfig(
        model=ModelConfig(folder=f"{folder}/model", name="SmolLM2-135M"),
        drafter=DrafterConfig(folder=f"{folder}/eagle3", ks=(0, *STATIC), synthetic_survival=SURVIVAL),
        engine=EngineConfig(max_running=REQUESTS, max_context_tokens=384, kv_gigabytes=0.5),
        workload=WorkloadConfig(
            lengths="r1-client35", requests=REQUESTS, rollouts=ROLLOUTS, longest_tokens=256, prompt_tokens=32
        ),
    )


def export(folder: str, calibration: str, out: Path) -> dict[str, Any]:
    """Recommend, export and check; returns the speculative_config that was exported."""
    settings = {
        "hardware.gpus": 1, "hardware.tp": 1, "hardware.model": "SmolLM2-135M", "cost.source": calibration,
        "workload.lengths": str(out / "lengths.parquet"), "workload.replay_steps": "true",
        "workload.steps": ROLLOUTS, "engine.max_running": REQUESTS, "acceptance.kind": "per_position",
        "acceptance.survival_by_position": list(SURVIVAL), "cluster.phases": [],
    }  # fmt: skip
    assignments = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    policies = ",".join(("none", *(f"static:{k}" for k in STATIC)))
    table = out / "table.json"
    for command in (
        ["sim", "recommend", *assignments, "--policies", policies, "--out", str(out / "advice")],
        ["sim", "export", str(out / "advice"), "--format", "vllm", "--draft-model", f"{folder}/eagle3",
         "--out", str(table)],
        ["real", "check-export", str(table)],
    ):  # fmt: skip
        tlt(*command)
    found: dict[str, Any] = json.loads(table.read_text(encoding="utf-8"))
    return found


def serve(folder: str, speculation: dict[str, Any] | None) -> None:
    """Build a stock engine; run a rollout for each number that comes in and print its seconds."""
    config = config_of(folder)
    arguments = engine_arguments(config, speculating=False)
    vllm_compat.prepare(config.engine)
    from vllm import LLM, SamplingParams

    if speculation is not None:
        arguments["speculative_config"] = speculation
        arguments["max_num_batched_tokens"] = 2048
    llm = LLM(**arguments)
    rollouts = RecordedLengths(config).rollouts
    print("ready", flush=True)
    for line in sys.stdin:
        requests = rollouts[int(line)]
        prompts = [{"prompt_token_ids": list(request.prompt_token_ids)} for request in requests]
        params = [
            SamplingParams(
                max_tokens=request.response_tokens, ignore_eos=True, temperature=1.0, detokenize=False
            )
            for request in requests
        ]
        start_s = perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        print(f"took {perf_counter() - start_s}", flush=True)


class EngineProcess:
    """One engine in a process of its own."""

    def __init__(self, folder: str, speculation: dict[str, Any] | None) -> None:
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "evidence.exported_table",
            "serve",
            folder,
            json.dumps(speculation),
        ]
        self._process = subprocess.Popen(
            command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip
        self._answer("ready")

    def _answer(self, word: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        raise RuntimeError(f"the engine ended with {self._process.wait()}")

    def rollout_s(self, number: int) -> float:
        """Return the seconds of one rollout."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        return float(self._answer("took"))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def static(folder: str, k: int) -> dict[str, Any]:
    """Return vLLM's own settings for the same K at every batch size."""
    return {"method": "eagle3", "model": f"{folder}/eagle3", "num_speculative_tokens": k}


def synthetic(speculation: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with acceptance drawn by the engine, so that all policies meet one drafter."""
    rates = list(SURVIVAL[: speculation["num_speculative_tokens"]])
    return speculation | {
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": rates,
        "draft_load_config": {"use_tqdm_on_load": False},
    }


def main(folder: str, calibration: str) -> None:
    """Measure and write the record."""
    from tlt.traces.lengths.files import write_trace

    with tempfile.TemporaryDirectory() as root:
        write_trace(RecordedLengths(config_of(folder)).trace, Path(root) / "lengths.parquet", force=True)
        table = export(folder, calibration, Path(root))
    policies = {"none": None, "table": synthetic(table)}
    policies |= {f"static:{k}": synthetic(static(folder, k)) for k in STATIC}
    engines = {name: EngineProcess(folder, speculation) for name, speculation in policies.items()}
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(-1, ROUNDS):
        for name, engine in engines.items():
            took_s = sum(engine.rollout_s(rollout) for rollout in range(ROLLOUTS))
            if number >= 0:  # the first round warms up
                seconds[name].append(took_s)
    for engine in engines.values():
        engine.close()
    medians = {name: median(values) for name, values in seconds.items()}
    best = min((f"static:{k}" for k in STATIC), key=lambda name: medians[name])
    others = [name for name in medians if name != "none"]
    ratios = [a / b for a, b in zip(seconds[best], seconds["table"], strict=True)]
    ranges = table["num_speculative_tokens_per_batch_size"]
    write(
        "exported_table",
        timed=True,
        claim="a vLLM table made by recommend and export, loaded by stock vLLM 0.32 on CPU, "
        f"against the best static K: {ROLLOUTS} rollouts of {REQUESTS} responses, SmolLM2-135M",
        value={
            "table over the best static K": round(median(ratios), 3),
            "the same, lowest of the rounds": round(min(ratios), 3),
            "the same, highest of the rounds": round(max(ratios), 3),
            **{f"{name} over none": round(medians["none"] / medians[name], 3) for name in others},
        },
        unit={OTHERS: "x"},
        target="above 1x",
        met=median(ratios) > 1,
        measured_on=f"{device()}, vLLM 0.32 for CPU",
        how=f"measured, medians of five rounds in turn; table {ranges}; best static: {best[-1]}; step "
        "times calibrated on this machine before; forced lengths, synthetic acceptance 0.8, 0.64, 0.5, 0.4",
        command=f"python -m evidence.exported_table {folder} {calibration}",
        raw=write_raw(
            "exported_table.points.jsonl",
            [{"policy": name, "seconds": [round(one, 3) for one in each]} for name, each in seconds.items()],
        ),
    )  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], json.loads(sys.argv[3]))
    else:
        main(sys.argv[1], sys.argv[2])
