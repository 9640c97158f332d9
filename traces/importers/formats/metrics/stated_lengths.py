"""What the metrics of a step say of its lengths, kept beside its times: to hold a dump against its log."""

from __future__ import annotations

import msgspec

from tlt.traces.importers.formats.metrics import of_trainers, trl_metrics, verl_metrics
from tlt.traces.importers.formats.metrics.drawn import Names
from tlt.traces.importers.reading.metric_lines import Metrics

NAMES: dict[str, Names] = {
    "verl": verl_metrics.NAMES,
    "TRL": trl_metrics.NAMES,
    "slime": of_trainers.SLIME,
    "SkyRL": of_trainers.SKYRL,
    "NeMo-RL": of_trainers.NEMO_RL,
    "ROLL": of_trainers.ROLL,
}


class StatedLengths(msgspec.Struct, kw_only=True):
    """By step: responses, their mean tokens, and the share of them at the cap; -1 where it is not said."""

    steps: list[int] = msgspec.field(default_factory=list)
    responses: list[float] = msgspec.field(default_factory=list)
    mean_tokens: list[float] = msgspec.field(default_factory=list)
    truncated_share: list[float] = msgspec.field(default_factory=list)

    def add(self, framework: str, metrics: Metrics) -> None:
        """Take what a step says; nothing if its framework has no names for it, or it has no mean."""
        names = NAMES.get(framework)
        mean = None if names is None else names.value(metrics, names.mean)
        if names is None or mean is None or mean <= 0:
            return
        count = verl_metrics.stated_responses(metrics) if framework == "verl" else None
        share = names.value(metrics, names.truncated)
        self.steps.append(metrics.step)
        self.responses.append(-1.0 if count is None else count)
        self.mean_tokens.append(mean)
        self.truncated_share.append(-1.0 if share is None else share)
