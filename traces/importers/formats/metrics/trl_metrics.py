"""TRL's GRPOTrainer and ms-swift: a dict a logged step, on the console, in trainer_state.json or a tracker.

The number of completions is not logged, but `num_tokens` is: tokens of prompts and completions since the
beginning. Between two logged steps it grows by n (mean + prompt) a step, which gives the mean prompt once n
is known, and refuses an n that is too large.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tlt.traces.importers.base import Importer
from tlt.traces.importers.formats.metrics.drawn import DRAWN, FILE_NAME, MOST_TOKENS, Names, reader
from tlt.traces.importers.formats.metrics.of_trainers import NOT_COUNTED
from tlt.traces.importers.formats.metrics.stated_count import asked
from tlt.traces.importers.reading.items import Options, Response, Skip, Source
from tlt.traces.importers.reading.metrics import iter_metrics
from tltsched.errors import InputError

BEFORE = ("", "train/")
NAMES = Names(
    mean="completions/mean_length",
    longest="completions/max_length",
    shortest="completions/min_length",
    truncated="completions/clipped_ratio",
    before=BEFORE,
)
TOTAL = "num_tokens"
PRODUCT = "per_device_train_batch_size x gradient_accumulation_steps x processes"
DRAW = reader(NAMES, asked("TRL", PRODUCT, NAMES))
SLACK = 1.001  # of tokens: means are printed rounded


def _read(source: Source, options: Options) -> Iterator[Response | Skip]:
    grown = _tokens_a_step(source)
    prompts: dict[int, int] = {}
    for item in DRAW(source, options):
        if isinstance(item, Response) and item.step in grown:
            if item.step not in prompts:
                prompts[item.step] = _prompt_tokens(item.step, *grown[item.step], options, source)
            item.prompt_tokens = prompts[item.step]
        yield item


def _tokens_a_step(source: Source) -> dict[int, tuple[float, float]]:
    """Return by step: tokens that a step adds to `num_tokens`, and the mean length.

    The first logged step is taken to add what the second does: a run that went on from a checkpoint has the
    tokens before it in its first number.
    """
    stated = []
    for metrics in iter_metrics(source.path):
        if not isinstance(metrics, Skip):
            total, mean = NAMES.value(metrics, TOTAL), NAMES.value(metrics, NAMES.mean)
            if total is not None and mean is not None:
                stated.append((metrics.step, total, mean))
    if len(stated) == 1 and stated[0][0] > 0:
        step, total, mean = stated[0]
        return {step: (total / step, mean)}
    grown = {
        step: ((total - before) / (step - step_before), mean)
        for (step_before, before, _), (step, total, mean) in pairwise(stated)
        if step > step_before and total > before
    }
    if grown and stated[0][0] not in grown:
        grown[stated[0][0]] = (grown[min(grown)][0], stated[0][2])
    return grown


def _prompt_tokens(step: int, tokens: float, mean: float, options: Options, source: Source) -> int:
    """Return the mean prompt of a step; raises InputError if so many responses do not fit into its tokens."""
    prompt = tokens / (options.responses or 1) - mean
    if prompt < mean * (1 - SLACK):
        raise InputError(
            "--responses", options.responses, f"at most {int(tokens / mean):,}",
            f"num_tokens of {source.name} grows by {tokens:,.0f} in step {step}, and completions have "
            f"{mean:,.1f} tokens in the mean: give the completions of one step",
        )  # fmt: skip
    return min(max(round(prompt), 0), MOST_TOKENS)


IMPORTER = Importer(
    name="trl-metrics",
    framework="TRL",
    file="console log, trainer_state.json, logging.jsonl, CSV or TensorBoard events of metrics",
    written_by="GRPOTrainer of TRL or ms-swift (logging_steps), report_to for trackers",
    kind="generated",
    lengths="generated",
    lost=(
        *DRAWN,
        NOT_COUNTED,
        "With logging_steps above 1 each line is the mean over so many steps, and stands for one of them.",
    ),
    signs=NAMES.signs,
    detect=NAMES.detect,
    read=_read,
    file_name=FILE_NAME,
)
