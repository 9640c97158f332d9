"""A question of full verl size: what it takes from a log to an answer.

`python -m evidence.full_size [counterfactual] [recommend]`; both if none is named. The log is made up: twelve
steps of 8,192 responses on 32 GPUs, in verl's words. Its times were not measured, so nothing is said here of
what the answer is worth.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from evidence.recording import OTHERS, PROJECT, write

STEPS, RESPONSES, CAP_TOKENS = 12, 8192, 16_384
RECOMMENDED_STEPS = 4
PHASES_S = {
    "reward": 14.0, "old_log_prob": 31.0, "ref": 29.0, "adv": 1.0, "update_actor": 112.0,
    "update_weights": 5.0,
}  # fmt: skip
WHERE = ("hardware.gpus=32", "hardware.tp=2", "hardware.gpu=H100", "hardware.model=Qwen2.5-7B")
MOST_S, MOST_MB, MOST_SILENT_S = 60.0, 50.0, 10.0
QUESTIONS = ("counterfactual", "recommend")


def log() -> str:
    """Return twelve lines of verl's metrics."""
    draw = np.random.default_rng(5).uniform
    lines = []
    for step in range(1, STEPS + 1):
        mean, prompt, gen_s = 3036 * (1 + draw(-0.03, 0.03)), 310.0, 262 * (1 + draw(-0.03, 0.03))
        values = {
            "response_length/mean": mean, "response_length/max": CAP_TOKENS, "response_length/min": 40,
            "response_length/clip_ratio": 0.009, "prompt_length/mean": prompt, "prompt_length/max": 900,
            "timing_s/gen": gen_s, **{f"timing_s/{name}": seconds for name, seconds in PHASES_S.items()},
            "timing_s/step": gen_s + sum(PHASES_S.values()),
            "perf/total_num_tokens": RESPONSES * (mean + prompt),
        }  # fmt: skip
        lines.append(" - ".join([f"step:{step}", *(f"{name}:{value:.2f}" for name, value in values.items())]))
    return "".join(f"(TaskRunner pid=4242) {line}\n" for line in lines)


def run(*arguments: str) -> dict[str, float]:
    """Run a command of the project; returns its processor and wall seconds and its longest silence."""
    before, began_s = os.times(), time.monotonic()
    silent_s = 0.0
    process = subprocess.Popen(
        [sys.executable, "-m", "tlt", *arguments],
        cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    heard_s = began_s
    for line in process.stdout:
        now_s = time.monotonic()
        silent_s, heard_s = max(silent_s, now_s - heard_s), now_s
        print(f"{now_s - began_s:7.1f} s  {line}", end="", file=sys.stderr, flush=True)
    if process.wait():
        sys.exit(f"tlt {' '.join(arguments)} ended with {process.returncode}")
    after = os.times()
    return {
        "processor": sum(after[2:4]) - sum(before[2:4]),
        "wall": time.monotonic() - began_s,
        "longest silence": max(silent_s, time.monotonic() - heard_s),
    }


def command_of(question: str, lengths: Path, phases: Path, out: Path) -> list[str]:
    """Return the words of a question."""
    settings = [*WHERE]
    if question == "recommend":
        settings += [
            f"workload.lengths={lengths}", "workload.replay_steps=true",
            f"workload.steps={RECOMMENDED_STEPS}", f"workload.max_response_tokens={CAP_TOKENS}",
        ]  # fmt: skip
    sets = [word for setting in settings for word in ("--set", setting)]
    about = [str(lengths)] if question == "counterfactual" else []
    return ["sim", question, *about, "--phases", str(phases), *sets, "--out", str(out)]


def measure(question: str) -> None:
    """Ask one of QUESTIONS from the log on, and write the record."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "verl.log").write_text(log())
        lengths, phases, out = place / "lengths.parquet", place / "phases.json", place / "out"
        run("trace", "import", str(place / "verl.log"), "--phases", str(phases), "--out", str(lengths))
        took = run(*command_of(question, lengths, phases, out))
        took["folder"] = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 1e6
    steps = STEPS if question == "counterfactual" else RECOMMENDED_STEPS
    write(
        f"full_size_{question}",
        claim=f"`tlt sim {question}` with its own policies and draws: {steps} steps of {RESPONSES:,} "
        "responses on 32 GPUs, from a made-up log of verl",
        value={name: round(value, 1) for name, value in took.items()},
        unit={OTHERS: "s", "folder": "MB"},
        target=f"at most {MOST_S:.0f} s of processor time and {MOST_MB:.0f} MB, a line every "
        f"{MOST_SILENT_S:.0f} s",
        met=took["processor"] <= MOST_S
        and took["folder"] <= MOST_MB
        and took["longest silence"] <= MOST_SILENT_S,
        measured_on="no GPU: the simulator itself",
        how="measured: processor time of the command and of all its processes, files and pictures included; "
        "in compiled code (the extra `fast`), compiled beforehand",
        command=f"python -m evidence.full_size {question}",
    )


def main(questions: list[str]) -> None:
    """Ask the questions that are named, or all."""
    unknown = sorted(set(questions) - set(QUESTIONS))
    if unknown:
        sys.exit(f"got {', '.join(unknown)} for QUESTION; allowed: {', '.join(QUESTIONS)}; name one of these")
    for question in questions or QUESTIONS:
        measure(question)


if __name__ == "__main__":
    main(sys.argv[1:])
