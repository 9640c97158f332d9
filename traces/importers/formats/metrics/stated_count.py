"""How many responses a step has, for frameworks whose metrics do not say it: the user is asked."""

from __future__ import annotations

from tlt.traces.importers.formats.metrics.drawn import Count, Names
from tlt.traces.importers.reading.items import Options
from tlt.traces.importers.reading.metric_lines import Metrics
from tltsched.errors import InputError


def asked(framework: str, product: str, names: Names) -> Count:
    """Return the count that `--responses` states; without it the count raises InputError.

    product: the framework's settings whose product is the number.
    """

    def count(metrics: Metrics, options: Options) -> int:
        if options.responses is not None:
            return options.responses
        raise InputError(
            "responses a step",
            f"nothing in step {metrics.step}",
            f"what {product} gives",
            f"{framework} does not log it: add --responses N{_hint(metrics, names)}",
        )

    return count


def _hint(metrics: Metrics, names: Names) -> str:
    """Return what a log says of the responses of one GPU, if it does."""
    rate, seconds, mean = (
        metrics.values.get("perf/tokens_per_gpu_per_sec"),
        metrics.values.get("perf/rollout_time"),
        names.value(metrics, names.mean),
    )
    if not rate or not seconds or not mean or min(rate, seconds, mean) <= 0:
        return ""
    return (
        " (perf/tokens_per_gpu_per_sec times perf/rollout_time over the mean length: "
        f"{rate * seconds / mean:,.0f} a GPU that rolls out)"
    )
