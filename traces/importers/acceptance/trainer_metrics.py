"""What trainers log of acceptance, by step: SkyRL, NeMo-RL, verl, slime and those that took over their names.

Acceptance lengths are with the bonus token throughout. SkyRL and NeMo-RL log counts and shares by position of
a step (their engines' counters, added up); slime and verl the mean over samples of length and rate, whose
quotient gives the drafts of a verification where all steps agree on one.
"""

from __future__ import annotations

import re

import msgspec

from tlt.traces.importers.acceptance.counted import Counted, depth_of
from tlt.traces.importers.acceptance.engine_logs import depth_of_rates
from tlt.traces.importers.reading.metric_lines import Metrics

# name of a number here -> ends of names of metrics
ENDS = {
    "drafts": ("spec_num_drafts", "draft_num_drafts"),
    "drafted": ("spec_num_draft_tokens", "draft_num_draft_tokens"),
    "accepted": ("spec_num_accepted_tokens", "draft_num_accepted_tokens"),
    "length": ("spec_accept_length", "spec_acceptance_length", "draft_mean_acceptance_length"),
    "rate": ("spec_accept_rate", "spec_acceptance_rate", "draft_acceptance_rate"),
}
POSITION = re.compile(r"(?:^|/)(?:draft_acceptance_rate_pos_|spec_acceptance_rate-pos-)(\d{1,3})$")
_OF_EVALUATION = re.compile(r"^(?:eval|val|validation|test)[/_-]|/(?:eval|val)/")
SAMPLED_DIGITS = 0.02  # means of single samples do not hold the quotient to the digit


class TrainerMetrics:
    """Takes the metrics of steps; `counted` is what they say."""

    def __init__(self) -> None:
        self.counts: list[Counted] = []
        self.means: list[Counted] = []
        self.rates: list[tuple[float, float]] = []

    def take(self, metrics: Metrics) -> None:
        """Read one step."""
        training = {name: value for name, value in metrics.values.items() if not _OF_EVALUATION.search(name)}
        values = {
            known: value for known, ends in ENDS.items() if (value := _ending(training, ends)) is not None
        }
        by_position = sorted(
            (int(found[1]), value) for name, value in training.items() if (found := POSITION.search(name))
        )
        shares = tuple(value for _, value in by_position)
        length, accepted = values.get("length"), values.get("accepted")
        if accepted is not None and length is not None and length > 1:
            drafts = values.get("drafts", accepted / (length - 1))
        else:
            drafts = values.get("drafts", 0.0)
        if drafts > 0 and accepted is not None:
            drafted = values.get("drafted")
            depth = len(shares) or depth_of(drafted, drafts)
            self.counts.append(
                Counted(verifications=drafts, accepted=accepted / drafts, depth=depth, by_position=shares,
                        drafted=drafted / drafts if drafted else None)
            )  # fmt: skip
        elif length is not None and 1 <= length <= 100:
            self.means.append(
                Counted(verifications=1.0, accepted=length - 1, depth=len(shares) or None, by_position=shares)
            )
            if values.get("rate"):
                self.rates.append((length, values["rate"]))

    def counted(self, framework: str) -> list[tuple[str, str, list[Counted]]]:
        """Return (source, what weights are, counts); nothing if no step says anything of drafts."""
        name = f"{framework} metrics" if framework else "metrics"
        if self.counts:
            return [(name, "", self.counts)]
        if not self.means:
            return []
        depth = depth_of_rates(self.rates, SAMPLED_DIGITS) if len(self.rates) == len(self.means) else None
        found = [msgspec.structs.replace(one, depth=one.depth or depth) for one in self.means]
        return [(name, "steps count alike", found)]


def _ending(values: dict[str, float], ends: tuple[str, ...]) -> float | None:
    for end in ends:
        for name, value in values.items():
            if name == end or name.endswith(f"/{end}"):
                return value
    return None
