"""Files that RL frameworks and serving benchmarks write, read as traces: one line here a format."""

from __future__ import annotations

from tlt.traces.importers.base import Importer
from tlt.traces.importers.formats import (
    areal,
    bench,
    mooncake,
    nemo_rl,
    request_csv,
    roll,
    run_folder,
    skyrl,
    slime,
    trl,
    verl,
    verl_metrics,
)

IMPORTERS: dict[str, Importer] = {
    one.name: one
    for one in (
        areal.IMPORTER,
        slime.IMPORTER,
        nemo_rl.IMPORTER,
        verl.IMPORTER,
        verl_metrics.IMPORTER,
        trl.IMPORTER,
        skyrl.IMPORTER,
        roll.IMPORTER,
        bench.VLLM,
        bench.SGLANG,
        request_csv.BURSTGPT,
        request_csv.AZURE,
        mooncake.IMPORTER,
        run_folder.IMPORTER,
    )
}
