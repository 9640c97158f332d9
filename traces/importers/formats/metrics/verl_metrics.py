"""verl console or W&B metrics: aggregates of a step, so lengths are generated from a fitted law."""

from __future__ import annotations

from tlt.traces.importers.base import Importer
from tlt.traces.importers.formats.metrics.drawn import DRAWN, FILE_NAME, MOST_RESPONSES, Names, reader
from tlt.traces.importers.reading.items import Options
from tlt.traces.importers.reading.metric_lines import Metrics

ASSUMED_RESPONSES = 256
NAMES = Names(
    mean="response_length/mean",
    longest="response_length/max",
    shortest="response_length/min",
    truncated="response_length/clip_ratio",
    prompt="prompt_length/mean",
)


def _count(metrics: Metrics, options: Options) -> int | str:
    mean, prompt = metrics.values[NAMES.mean], metrics.values.get(NAMES.prompt)
    total = metrics.values.get("perf/total_num_tokens")
    if prompt is None or total is None or prompt < 0 or mean + prompt <= 0:
        return options.responses or ASSUMED_RESPONSES
    count = round(total / (mean + prompt))
    if not 1 <= count <= MOST_RESPONSES:
        return "perf/total_num_tokens over the mean lengths gives no number of responses"
    return count


IMPORTER = Importer(
    name="verl-metrics",
    framework="verl",
    file="console log, JSONL, W&B CSV or JSON, or TensorBoard events of metrics",
    written_by="trainer.logger=['console'] (or a file, W&B or TensorBoard of the same metrics)",
    kind="generated",
    lengths="generated",
    lost=(
        *DRAWN,
        "The number of responses is perf/total_num_tokens over the mean lengths; where that is not logged it "
        f"is what --responses says, else assumed to be {ASSUMED_RESPONSES}.",
    ),
    detect=NAMES.detect,
    read=reader(NAMES, _count),
    file_name=FILE_NAME,
)
