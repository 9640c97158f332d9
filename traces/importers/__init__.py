"""Files that RL frameworks and serving benchmarks write, read as traces: one line here a format."""

from __future__ import annotations

from tlt.traces.importers.base import Importer
from tlt.traces.importers.formats import columns, run_folder
from tlt.traces.importers.formats.metrics import of_trainers, trl_metrics, verl_metrics
from tlt.traces.importers.formats.serving import (
    aiperf,
    batch_output,
    bench,
    guidellm,
    llm_serving_sim,
    mooncake,
    request_csv,
)
from tlt.traces.importers.formats.sessions import agentic_mooncake, dynamo, session_rows
from tlt.traces.importers.formats.trainers import areal, nemo_rl, roll, skyrl, slime, trl, verifiers, verl

IMPORTERS: dict[str, Importer] = {
    one.name: one
    for one in (
        areal.IMPORTER,
        slime.IMPORTER,
        nemo_rl.IMPORTER,
        verl.IMPORTER,
        verl_metrics.IMPORTER,
        trl_metrics.IMPORTER,
        *of_trainers.IMPORTERS,
        trl.IMPORTER,
        skyrl.IMPORTER,
        roll.IMPORTER,
        verifiers.EXACT,
        verifiers.TEXTS,
        bench.VLLM,
        bench.SGLANG,
        batch_output.IMPORTER,
        aiperf.IMPORTER,
        guidellm.IMPORTER,
        llm_serving_sim.IMPORTER,
        request_csv.SERVING_SIM,
        request_csv.SPLITWISE,
        request_csv.BURSTGPT,
        request_csv.AZURE,
        mooncake.MOONCAKE,
        mooncake.BAILIAN,
        agentic_mooncake.IMPORTER,
        dynamo.IMPORTER,
        session_rows.APPLIED_COMPUTE,
        session_rows.AGENTX,
        run_folder.IMPORTER,
        columns.IMPORTER,
    )
}
