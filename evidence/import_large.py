"""Is a large file imported in bounded memory? `python -m evidence.import_large [GB]` (5 by default)

Writes a JSONL file as AReaL dumps it, lengths lognormal, about four characters of text a token, into the
folder of temporary files; imports it in a process of its own; removes it. Writes import_large.json.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np

from evidence.recording import device, write

LIMIT_MB = 600
CAP_TOKENS, GROUP = 16_384, 8

IMPORT = """
import sys, time
from tlt.commands.trace.group import trace
began = time.monotonic()
trace(["import", sys.argv[1], "--out", sys.argv[2], "--cap", "16384", "--json"], standalone_mode=False)
seconds = time.monotonic() - began
peak = open("/proc/self/status", encoding="ascii").read().split("VmHWM:")[1].split()[0]
print(seconds, peak, file=sys.stderr)
"""


class Told(msgspec.Struct):
    """What is needed of the report."""

    rows: int
    truncated: int


def make(path: Path, size_bytes: int) -> int:
    """Write lines until the file has `size_bytes`; returns how many."""
    rng = np.random.default_rng(6)
    text = ("so we add the two halves and take what is left of it; " * 2000)[: 4 * CAP_TOKENS]
    encode = msgspec.json.encode
    lines = 0
    with path.open("wb") as file:
        while file.tell() < size_bytes:
            for tokens in np.minimum(rng.lognormal(7.0, 1.0, 4096).astype(int) + 1, CAP_TOKENS).tolist():
                record = {
                    "task_id": lines // GROUP, "sample_idx": lines % GROUP, "seqlen": 200 + tokens,
                    "prompt_len": 200, "head_version": lines // 8192, "tail_version": lines // 8192 + 1,
                    "reward": 1.0, "prompt": text[:800], "completion": text[: 4 * tokens],
                }  # fmt: skip
                file.write(encode(record) + b"\n")
                lines += 1
    return lines


def main() -> None:
    """Make the file, import it, write the record."""
    size_gb = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rollout.jsonl"
        lines = make(path, int(size_gb * 1e9))
        size = path.stat().st_size
        command = [sys.executable, "-c", IMPORT, str(path), str(Path(folder) / "out.parquet")]
        done = subprocess.run(command, capture_output=True, check=True, text=True)
    told = msgspec.json.decode(done.stdout, type=Told)
    seconds, peak_kb = map(float, done.stderr.split()[-2:])
    peak_mb = round(peak_kb / 1024)
    write(
        "import_large",
        claim=f"a JSONL file of {size / 1e9:.1f} GB and {lines:,} responses, as AReaL writes it, is imported "
        "in bounded memory",
        value={
            "size": round(size / 1e9, 2),
            "responses": float(told.rows),
            "took": round(seconds, 1),
            "rate": round(size / 1e6 / seconds),
            "peak memory": float(peak_mb),
        },
        unit={"size": "GB", "responses": "", "took": "s", "rate": "MB a second", "peak memory": "MB"},
        measured_on=device(),
        target=f"all rows, peak memory below {LIMIT_MB} MB",
        met=told.rows == lines and peak_mb < LIMIT_MB,
        how="measured, VmHWM of a process of its own; by the types of the columns 90 bytes a response",
        command="python -m evidence.import_large",
    )


if __name__ == "__main__":
    main()
