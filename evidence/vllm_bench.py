"""A vLLM bench run, imported and simulated: `python -m evidence.vllm_bench FOLDER CALIBRATION`

FOLDER is one of `tlt real model SmolLM2-135M`, CALIBRATION of `tlt real calibrate` on this machine. vLLM's
own server and its own benchmark run here, with --save-detailed; the file is imported, simulated, and the
simulated makespan is held against the measured one.

Writes vllm_bench.json and vllm_bench/result.json. Needs the extra real-cpu.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evidence.recording import HERE, OTHERS, PROJECT, device, tlt, write
from tlt.realrun.engine.vllm_compat import VERSION
from tlt.traces.runs.runfolder import RunFolder

PORT, START_S = 8123, 300
CONCURRENT, PROMPTS, PROMPT_TOKENS, OUTPUT_TOKENS = 8, 64, 32, 96
VLLM = str(Path(sys.executable).parent / "vllm")
RESULT = HERE / "vllm_bench" / "result.json"


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of vLLM's command, which asks for the version of a package named vllm.

    The build for CPU has another name, so a stand-in for its metadata is put in the way.
    """
    named = f"{VERSION}+cpu"  # vLLM takes the kind of device from it
    info = folder / f"vllm-{named}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {named}\n", encoding="utf-8")
    return os.environ | {
        "PYTHONPATH": str(folder), "PYTHONWARNINGS": "ignore", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }  # fmt: skip


@contextmanager
def server(model: Path, surroundings: dict[str, str], log: Path) -> Iterator[None]:
    """Serve the model while inside."""
    command = [
        VLLM, "serve", str(model), "--port", str(PORT), "--dtype", "bfloat16",
        "--max-model-len", "512", "--max-num-seqs", str(CONCURRENT), "--no-enable-prefix-caching",
    ]  # fmt: skip
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=surroundings, stdout=file, stderr=file)
        try:
            for _ in range(START_S):
                if process.poll() is not None:
                    raise RuntimeError(
                        f"the server ended with {process.returncode}: {log.read_text()[-2000:]}"
                    )
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=1)
                    break
                except (urllib.error.URLError, TimeoutError):
                    time.sleep(1)
            yield
        finally:
            process.terminate()
            process.wait(60)


def bench(model: Path, surroundings: dict[str, str], folder: Path) -> Path:
    """Run vLLM's benchmark and return its result file."""
    command = [
        VLLM, "bench", "serve", "--backend", "vllm", "--model", str(model),
        "--port", str(PORT), "--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS),
        "--random-output-len", str(OUTPUT_TOKENS), "--random-range-ratio", "0.9",
        "--num-prompts", str(PROMPTS),
        "--max-concurrency", str(CONCURRENT), "--ignore-eos", "--save-result", "--save-detailed",
        "--num-warmups", str(CONCURRENT), "--result-dir", str(folder), "--result-filename", "result.json",
    ]  # fmt: skip
    subprocess.run(command, env=surroundings, check=True)
    return folder / "result.json"


def simulated_s(result: Path, calibration: str, folder: Path) -> float:
    """Import the result, simulate it, and return the makespan."""
    trace, out = folder / "trace.parquet", folder / "run"
    tlt("trace", "import", str(result), "--out", str(trace))
    settings = {
        "hardware.gpus": 1, "hardware.tp": 1, "hardware.model": "SmolLM2-135M", "cost.source": calibration,
        "workload.lengths": trace, "workload.replay_steps": "true", "workload.steps": 1,
        "engine.max_running": CONCURRENT, "engine.prefix_caching": "false", "cluster.phases": [],
        "acceptance.kind": "geometric",
    }  # fmt: skip
    assignments = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    tlt("sim", "run", *assignments, "--policy", "none", "--no-report", "--out", str(out))
    return RunFolder(out).summary().wall_s


def main(folder: str, calibration: str) -> None:
    """Measure, simulate, write the record."""
    with tempfile.TemporaryDirectory() as root:
        place, model = Path(root), (PROJECT / folder / "model").resolve()
        (place / "site").mkdir()
        surroundings = environment(place / "site")
        with server(model, surroundings, place / "server.log"):
            result = bench(model, surroundings, place)
        found = json.loads(result.read_text(encoding="utf-8"))
        predicted_s = simulated_s(result, calibration, place)
        found["generated_texts"] = ["" for _ in found["generated_texts"]]  # of random prompts
        found["model_id"] = found["tokenizer_id"] = "SmolLM2-135M"
        RESULT.write_text(json.dumps(found) + "\n", encoding="utf-8")
    error = predicted_s / found["duration"] - 1
    write(
        "vllm_bench",
        timed=True,
        claim=f"vLLM {VERSION}'s own server and benchmark on CPU ({PROMPTS} prompts, {CONCURRENT} at once, "
        "SmolLM2-135M, no speculation), imported and simulated",
        value={
            "error of the makespan": round(error, 4),
            "measured": round(found["duration"], 2),
            "simulated": round(predicted_s, 2),
        },
        unit={OTHERS: "s", "error of the makespan": "share"},
        target="within 10 %",
        met=abs(error) <= 0.1,
        measured_on=f"{device()}, vLLM {VERSION} for CPU",
        how="modelled against measured; step times calibrated before on the same machine in a process "
        "without a server: HTTP, detokenizing and the client share the cores here and are not modelled; "
        "the file is vllm_bench/result.json",
        command=f"python -m evidence.vllm_bench {folder} {calibration}",
    )  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
