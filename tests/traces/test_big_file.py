import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

ROWS = 10_000_000
LIMIT_MB = 600  # the table alone is 10^7 x 22 bytes; the libraries alone take about 110 MB

DESCRIBE = """
import sys
from tlt.commands.trace.group import trace
trace(["describe", sys.argv[1], "--json"], standalone_mode=False)
# VmHWM starts anew with this program; ru_maxrss would keep the peak of the process that started it.
status = open("/proc/self/status", encoding="ascii").read()
print(status.split("VmHWM:")[1].split()[0], file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_ten_million_rows_are_described_in_bounded_memory(tmp_path: Path, suffix: str) -> None:
    rng = np.random.default_rng(1)
    lengths = np.minimum(rng.lognormal(7, 1, ROWS).astype(np.int32) + 1, 32_768)
    table = pa.table(
        {"step": np.repeat(np.arange(100, dtype=np.int32), ROWS // 100), "response_tokens": lengths}
    )
    path = tmp_path / f"big{suffix}"
    if suffix == ".csv":
        pa_csv.write_csv(table, path)
    else:
        pq.write_table(table, path, row_group_size=ROWS)
    done = subprocess.run([sys.executable, "-c", DESCRIBE, str(path)], capture_output=True, check=True)
    told = json.loads(done.stdout)
    path.unlink()
    assert told["rows"] == ROWS
    assert told["p99"] == pytest.approx(np.percentile(lengths, 99))
    assert told["mean"] == pytest.approx(lengths.mean())
    assert int(done.stderr.splitlines()[-1]) / 1024 < LIMIT_MB
