"""verl console or W&B metrics: aggregates of a step, so lengths are generated from a fitted law."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tlt.traces.common.seeds import LOGGED_LENGTHS, generator
from tlt.traces.importers.base import Importer
from tlt.traces.importers.length_law import Aggregate, draw
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Options, Response, Skip, Source
from tlt.traces.importers.reading.metric_lines import Metrics, iter_metrics, metrics_of

ASSUMED_RESPONSES = 256
MOST_RESPONSES = 1 << 16  # of a step
MOST_GENERATED = 1 << 22  # of a file: 4,096 steps of 1,024 responses
MOST_TOKENS = 1 << 24


def _aggregate(metrics: Metrics) -> Aggregate | str:
    """Return what the metrics say of lengths, or why they say nothing of use."""
    values = metrics.values
    mean, longest = (values.get(f"response_length/{name}") for name in ("mean", "max"))
    if mean is None or longest is None:
        return "metrics without response_length/mean and response_length/max"
    if not 0 < mean <= longest <= MOST_TOKENS or longest < 1:
        return "response_length/mean above response_length/max, or out of range"
    share = values.get("response_length/clip_ratio", 0.0)
    shortest = values.get("response_length/min", 1.0)
    if not 0 <= share <= 1 or not 0 <= shortest <= mean:
        return "response_length/clip_ratio or response_length/min out of range"
    prompt, total = (values.get(name) for name in ("prompt_length/mean", "perf/total_num_tokens"))
    count = (
        ASSUMED_RESPONSES if prompt is None or total is None or prompt < 0 else round(total / (mean + prompt))
    )
    if not 1 <= count <= MOST_RESPONSES:
        return "perf/total_num_tokens over the mean lengths gives no number of responses"
    return Aggregate(mean, int(longest), int(shortest), share, count)


def _read(source: Source, options: Options) -> Iterator[Response | Skip]:
    made = 0
    for metrics in iter_metrics(source.path):
        if isinstance(metrics, Skip):
            yield metrics
            continue
        found = _aggregate(metrics)
        if isinstance(found, str):
            yield Skip(metrics.line, found, metrics.text)
            continue
        made += found.responses
        if made > MOST_GENERATED:
            yield Skip(metrics.line, f"a step beyond {MOST_GENERATED:,} generated responses", metrics.text)
            continue
        rng = generator(options.seed, LOGGED_LENGTHS, metrics.step)
        drawn = draw(found, rng)
        if drawn is None:
            yield Skip(metrics.line, "no lognormal law has this mean, maximum and clip ratio", metrics.text)
            continue
        prompt = round(min(max(metrics.values.get("prompt_length/mean", 0.0), 0.0), MOST_TOKENS))
        for index, (tokens, truncated) in enumerate(
            zip(drawn.tokens.tolist(), drawn.truncated.tolist(), strict=True)
        ):
            yield Response(
                metrics.line, (metrics.step << 32) + index, tokens, prompt, truncated, metrics.step, sample=0
            )


def _detect(head: Head) -> str:
    for line in head.lines:
        if not line.too_long:
            metrics = metrics_of(line)
            if metrics is not None and "response_length/mean" in metrics.values:
                return ""
    return "no line with response_length/mean of a step among its first ones"


IMPORTER = Importer(
    name="verl-metrics",
    framework="verl",
    file="console log, or JSONL of metrics",
    written_by="trainer.logger=['console'] (or a file or W&B export of the same metrics)",
    kind="generated",
    lengths="generated",
    lost=(
        "Only mean, maximum, minimum and clip ratio of a step are recorded: each step's lengths are drawn "
        "from a lognormal law fitted to them, cut at the maximum.",
        "The number of responses is perf/total_num_tokens over the mean lengths; where that is not logged it "
        f"is assumed to be {ASSUMED_RESPONSES}.",
        "Prompt groups are not recorded: each response is its own prompt.",
    ),
    detect=_detect,
    read=_read,
    file_name=re.compile(r"\.(?:log|txt|out|jsonl?)(?:\.gz)?$"),
)
