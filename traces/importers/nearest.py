"""What a file is that no format claims: the nearest format, and what else can be taken from it."""

from __future__ import annotations

from typing import NamedTuple

from tlt.traces.importers import IMPORTERS
from tlt.traces.importers.acceptance.engine_logs import SGLANG, VLLM, VLLM_0
from tlt.traces.importers.meaning import framework_of
from tlt.traces.importers.reading.head import Head, holds_trace
from tlt.traces.importers.reading.metrics import metric_names

PHASES = "tlt trace import PATH --phases phases.json"
DESCRIBE = "tlt trace describe PATH"
NEAR = 0.3  # of the names of a format: fewer are chance
PICKLE = "slime"
MEAN_ALONE = ("response_length_mean", "response_length/mean", "completion_length", "completions/mean_length")


class Near(NamedTuple):
    """A format that a file is near to, and the one reason why it does not fit."""

    name: str
    reason: str


class Use(NamedTuple):
    """Something that a file has beside lengths: what it is, and the command that takes it, with PATH."""

    what: str
    command: str


def names_in(head: Head) -> set[str]:
    """Return the names of fields, columns and metrics at the beginning of a file."""
    header = {name.strip() for name in head.header.split(",")} if head.is_text else set()
    return {*head.fields, *head.columns, *header, *metric_names(head)}


def nearest(head: Head, claims: dict[str, str]) -> Near | None:
    """Return the nearest format of those that say in `claims` why they do not fit, if one is near."""
    if head.start.startswith((b"\x80", b"PK\x03\x04")):
        return Near(PICKLE, claims[PICKLE])
    names = names_in(head)
    shares = {
        name: sum(sign in names for sign in one.signs) / len(one.signs)
        for name, one in IMPORTERS.items()
        if one.signs
    }
    best = max(shares, key=lambda name: shares[name])
    return Near(best, claims[best]) if shares[best] >= NEAR else None


def other_uses(head: Head) -> list[Use]:
    """Return what else can be taken from a file."""
    uses = []
    if holds_trace(head.path):
        uses.append(Use("a trace in this project's own columns already", DESCRIBE))
    lines = [line.text for line in head.lines]
    if any(VLLM in line or VLLM_0 in line or SGLANG in line for line in lines):
        uses.append(Use("a server log that says how many drafts were accepted", "tlt trace acceptance PATH"))
    elif any(line.startswith((b"vllm:spec_", b"sglang:spec_")) for line in lines):
        uses.append(Use("Prometheus text with counts of drafts", "tlt trace acceptance PATH"))
    names = metric_names(head)
    framework = framework_of(dict.fromkeys(names, 1.0))
    if framework is not None:
        what = f"metrics of {framework.name} with times of phases"
        uses.append(Use(what, PHASES))
    return uses


def lengths_reason(head: Head) -> str:
    """Return why metrics have no lengths; empty where they say nothing of lengths."""
    found = sorted(name for name in metric_names(head) if name.endswith(MEAN_ALONE))
    if not found:
        return ""
    return f"{found[0]} is a mean alone: without the longest there is no law of lengths"
