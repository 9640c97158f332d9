"""A run folder of this project, imported as any other file."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from tlt.traces.importers.importing import import_trace
from tlt.traces.importers.reading.items import Options
from tlt.traces.runs.runfolder import RESPONSE_COLUMNS


def test_responses_of_a_run_folder_are_read(tmp_path: Path) -> None:
    rows = {
        "step": [1, 1, 2], "request": [0, 1, 0], "group": [0, 0, 0], "worker": [0, 1, 0],
        "prompt_tokens": [5, 5, 6], "response_tokens": [10, 20, 30], "truncated": [False, True, False],
        "start_s": [0.0] * 3, "finish_s": [1.0] * 3,
    }  # fmt: skip
    pd.DataFrame(rows).astype(RESPONSE_COLUMNS).to_parquet(tmp_path / "responses.parquet", index=False)
    (tmp_path / "summary.json").write_text("{}")
    trace, report = import_trace(tmp_path, Options())
    assert report.format == "run-folder"
    assert trace.rows["response_tokens"].tolist() == [10, 20, 30]
    assert trace.rows["truncated"].tolist() == [False, True, False]
    assert trace.rows["prompt_id"].nunique() == 2
    assert report.files_left_out[0].first == "summary.json"
