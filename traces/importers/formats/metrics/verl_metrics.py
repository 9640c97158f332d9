"""verl console or W&B metrics: aggregates of a step, so lengths are generated from a fitted law."""

from __future__ import annotations

from collections.abc import Iterator

from tlt.traces.importers.base import Importer
from tlt.traces.importers.formats.metrics.drawn import DRAWN, FILE_NAME, MOST_RESPONSES, Names, reader
from tlt.traces.importers.formats.metrics.stated_count import asked
from tlt.traces.importers.reading.items import Options
from tlt.traces.importers.reading.metric_lines import Metrics
from tltsched.errors import InputError

NAMES = Names(
    mean="response_length/mean",
    longest="response_length/max",
    shortest="response_length/min",
    truncated="response_length/clip_ratio",
    prompt="prompt_length/mean",
)


TOTAL, PER_TOKEN = "perf/total_num_tokens", "timing_per_token_ms/"
OF_RESPONSES = "gen"  # the one phase whose milliseconds a token are of response tokens alone
ROUNDING_MS = 0.0005  # consoles print three digits
COARSE, DISAGREE = (
    0.02,
    0.05,
)  # of a count: not used where rounding hides so much; refused where two differ so
ASK = asked("verl", "data.train_batch_size x actor_rollout_ref.rollout.n", NAMES)


def _count(metrics: Metrics, options: Options) -> int | str:
    stated = list(_stated(metrics.values))
    if not stated:
        return ASK(metrics, options)
    (_, first), *others = stated
    if any(abs(count - first) > DISAGREE * first for _, count in others):
        told = ", ".join(f"{name} {count:,.0f}" for name, count in stated)
        raise InputError(
            "responses a step", told, "one number in all of them",
            f"step {metrics.step} contradicts itself: a time or token count is in another unit than named",
        )  # fmt: skip
    if not 1 <= round(first) <= MOST_RESPONSES:
        return f"{stated[0][0]} over the mean lengths gives no number of responses"
    return round(first)


def stated_responses(metrics: Metrics) -> float | None:
    """Return the responses of a step as its tokens or times state them; None: they do not."""
    if NAMES.mean not in metrics.values:
        return None
    return next((count for _, count in _stated(metrics.values)), None)


def _stated(values: dict[str, float]) -> Iterator[tuple[str, float]]:
    """Yield what states the number of responses, the most exact first: tokens over mean lengths.

    A phase's seconds over its milliseconds a token are tokens: of responses for the rollout, else of all.
    """
    mean, prompt = values[NAMES.mean], values.get(NAMES.prompt, -1.0)
    if prompt >= 0 and TOTAL in values and mean + prompt > 0:
        yield TOTAL, values[TOTAL] / (mean + prompt)
    phases = [name.removeprefix(PER_TOKEN) for name in values if name.startswith(PER_TOKEN)]
    for phase in sorted(phases, key=lambda phase: phase != OF_RESPONSES):
        each_ms, seconds = values[PER_TOKEN + phase], values.get(f"timing_s/{phase}", 0.0)
        tokens = mean if phase == OF_RESPONSES else mean + prompt if prompt >= 0 else 0.0
        if tokens > 0 and seconds > 0 and each_ms * COARSE > ROUNDING_MS:
            yield PER_TOKEN + phase, seconds * 1000.0 / each_ms / tokens


IMPORTER = Importer(
    name="verl-metrics",
    framework="verl",
    file="console log, JSONL, W&B CSV or JSON, or TensorBoard events of metrics",
    written_by="trainer.logger=['console'] (or a file, W&B or TensorBoard of the same metrics)",
    kind="generated",
    lengths="generated",
    lost=(
        *DRAWN,
        "The number of responses is perf/total_num_tokens over the mean lengths, else timing_s/gen over "
        "timing_per_token_ms/gen over the mean; where neither is logged --responses says it.",
        "Turns are not in means: of a run with tools neither turns nor single waits are known.",
    ),
    signs=NAMES.signs,
    detect=NAMES.detect,
    read=reader(NAMES, _count),
    file_name=FILE_NAME,
)
