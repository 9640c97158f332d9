"""An exported batch table, read by the engine that it was made for.

The table must mean to vLLM what it was meant to: the same K at every batch size as the ranges in the file,
without a gap that vLLM would fill on its own, and the same rule as the origin beside it names.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from tlt.realrun.engine import vllm_compat
from tlt.realrun.engine.speculation_table import parse_speculation
from tltsched.errors import InputError
from tltsched.written.policy_name import policy_of

TABLE = "num_speculative_tokens_per_batch_size"
Parser = Callable[[dict[str, Any], int], list[int]]


class Origin(msgspec.Struct, frozen=True):
    """What the check needs of FILE.provenance.json; it holds more."""

    policy: str


class ExportCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The table as vLLM reads it."""

    version: str
    ranges: tuple[tuple[int, int, int], ...]  # first batch, last batch, K
    policy: str  # the same rule as `tlt` takes it for --policies
    origin: bool  # whether FILE.provenance.json was there to compare with

    def text(self) -> str:
        """Return one line a range."""
        lines = [
            f"  batch {first}-{last}: {f'K = {k}' if k else 'off (K = 0)'}" for first, last, k in self.ranges
        ]
        kept = "as FILE.provenance.json says" if self.origin else "no FILE.provenance.json to compare with"
        return "\n".join([f"vLLM {self.version} reads the table ({kept}):", *lines])


def check_export(
    path: Path, max_running: int | None = None, parse: Parser = parse_speculation
) -> ExportCheck:
    """Read an export with vLLM's parser, for up to `max_running` requests (None: those of the table).

    Raises InputError if vLLM is missing or refuses the file, or reads another table than it was meant to.
    """
    vllm_compat.require_version()
    settings = _settings(path)
    meant = _ranges(path, settings)
    most = max_running or meant[-1][1]
    try:
        lookup = parse(settings, most)
    except ValueError as error:
        text = " ".join(str(error).split())
        raise InputError(
            path.name, text, f"what vLLM {vllm_compat.VERSION} accepts", "export again"
        ) from None
    by_batch = [k for first, last, k in meant for _ in range(first, last + 1)]
    expected = (by_batch + [by_batch[-1]] * most)[:most]  # the last K carries on
    if lookup[1:] != expected:
        raise InputError(path.name, f"K by batch {lookup[1:]}", f"{expected}, as its ranges", "export again")
    policy = policy_of("vllm_table", [f"{first}-{last}={k}" for first, last, k in _merged(by_batch)])
    origin = path.with_name(f"{path.name}.provenance.json")
    if origin.is_file():
        _check_policy(path, origin, policy)
    return ExportCheck(
        version=vllm_compat.installed_version(),
        ranges=_merged(expected),
        policy=policy,
        origin=origin.is_file(),
    )


def _settings(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError("FILE", f"{path}: {error}", "a JSON object", "export --format vllm again") from None


def _ranges(path: Path, settings: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Return the ranges of the file; raises InputError unless they follow one another from 1 on."""
    try:
        ranges = msgspec.convert(settings.get(TABLE), list[tuple[int, int, int]])
    except msgspec.ValidationError as error:
        raise InputError(
            f"{TABLE} in {path.name}", str(error), "[[first, last, K], ...]", "export again"
        ) from None
    after = 1
    for first, last, _ in ranges:
        if first != after or last < first:
            raise InputError(
                f"{TABLE} in {path.name}", ranges, f"ranges that follow one another; {after} comes next",
                "export again",
            )  # fmt: skip
        after = last + 1
    if not ranges:
        raise InputError(f"{TABLE} in {path.name}", ranges, "one range or more", "export again")
    return ranges


def _merged(by_batch: list[int]) -> tuple[tuple[int, int, int], ...]:
    """Return (first batch, last batch, K) of each run of one K."""
    ranges, first = [], 1
    for k, run in groupby(by_batch):
        last = first + len(list(run)) - 1
        ranges.append((first, last, k))
        first = last + 1
    return tuple(ranges)


def _check_policy(path: Path, origin: Path, policy: str) -> None:
    try:
        meant = msgspec.json.decode(origin.read_bytes(), type=Origin).policy
    except msgspec.MsgspecError as error:
        raise InputError(origin.name, str(error), "the origin of an export", "export again") from None
    if meant != policy:
        raise InputError(path.name, policy, f"{meant}, as {origin.name} says", "export again")
