"""An exported batch table, read as the engine that it was made for reads it.

The table must mean to the engine what it was meant to: the same K at every batch size as the ranges in the
file, without a gap that vLLM would fill on its own, and the same rule as the origin beside it names. vLLM's
own parser reads its files. Those for SGLang and TensorRT-LLM are read by the rule that their source states,
or by SGLang itself where an interpreter that has it is named.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tlt.realrun.engine import vllm_compat
from tlt.realrun.engine.export_rules import (
    MOST_BATCH,
    SGLANG_RULE,
    TRTLLM_RULE,
    ask_sglang,
    is_sglang,
    is_trtllm,
    last_batch,
    sglang_lookup,
    trtllm_lookup,
)
from tlt.realrun.engine.speculation_table import parse_speculation
from tlt.traces.common.bounds import require_size
from tltsched.errors import InputError
from tltsched.policies import parse_policy
from tltsched.written.policy_name import policy_of

VERL_DRAFTS = ("actor_rollout_ref", "rollout", "engine_kwargs", "vllm", "speculative_config")
TABLE = "num_speculative_tokens_per_batch_size"
Batch = Annotated[int, Meta(ge=1, le=MOST_BATCH)]
Drafts = Annotated[int, Meta(ge=0, le=1_024)]
Parser = Callable[[dict[str, Any], int], list[int]]


class Origin(msgspec.Struct, frozen=True):
    """What the check needs of FILE.provenance.json; it holds more."""

    policy: str


class ExportCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The table as the engine reads it."""

    reader: str  # engine and version, or by which rule
    ranges: tuple[tuple[int, int, int], ...]  # first batch, last batch, K
    policy: str  # the same rule as `tlt` takes it for --policies
    origin: bool  # whether FILE.provenance.json was there to compare with

    def text(self) -> str:
        """Return one line a range."""
        lines = [
            f"  batch {first}-{last}: {f'K = {k}' if k else 'off (K = 0)'}" for first, last, k in self.ranges
        ]
        kept = "as FILE.provenance.json says" if self.origin else "no FILE.provenance.json to compare with"
        return "\n".join([f"{self.reader} reads the table ({kept}):", *lines])


def check_export(
    path: Path, max_running: int | None = None, parse: Parser = parse_speculation, python: Path | None = None
) -> ExportCheck:
    """Read an export as its engine does, for up to `max_running` requests (None: those of the table).

    `python`: an interpreter with SGLang, for files of that engine. Raises InputError if vLLM is missing or
    refuses its file, or if the file is read as another table than it was meant to be.
    """
    settings = _settings(path)
    if is_sglang(settings) or is_trtllm(settings):
        return _checked_by_rule(path, settings, max_running, python)
    if python is not None:
        raise InputError(
            "--python", str(python), "a file for SGLang", "leave it out: vLLM is read in process"
        )
    return _checked_by_vllm(path, settings, max_running, parse)


def _checked_by_rule(
    path: Path, settings: dict[str, Any], max_running: int | None, python: Path | None
) -> ExportCheck:
    most = max_running or last_batch(settings)
    sglang = is_sglang(settings)
    lookup = (sglang_lookup if sglang else trtllm_lookup)(settings, most)
    reader = SGLANG_RULE if sglang else TRTLLM_RULE
    if python is not None:
        if not sglang:
            raise InputError("--python", str(python), "a file for SGLang", "leave it out")
        version, own = ask_sglang(python, path, most)
        if own != lookup:
            raise InputError(path.name, f"K by batch {own[1:]}", f"{lookup[1:]}, {SGLANG_RULE}", "report it")
        reader = f"SGLang {version}"
    whole = (sglang_lookup if sglang else trtllm_lookup)(settings, last_batch(settings))
    policy = _policy_of(whole[1:])
    known = _check_policy(path, policy)
    return ExportCheck(reader=reader, ranges=_merged(lookup[1:]), policy=policy, origin=known)


def _checked_by_vllm(
    path: Path, settings: dict[str, Any], max_running: int | None, parse: Parser
) -> ExportCheck:
    vllm_compat.require_version()
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
    policy = _policy_of(by_batch)
    known = _check_policy(path, policy)
    return ExportCheck(
        reader=f"vLLM {vllm_compat.installed_version()}",
        ranges=_merged(expected),
        policy=policy,
        origin=known,
    )


def _policy_of(by_batch: list[int]) -> str:
    return policy_of("vllm_table", [f"{first}-{last}={k}" for first, last, k in _merged(by_batch)])


def _settings(path: Path) -> dict[str, Any]:
    try:
        require_size(path, "FILE")
        settings = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError("FILE", f"{path}: {error}", "a JSON object", "export it again") from None
    return _of_verl(settings) or settings


def _of_verl(settings: dict[str, Any]) -> dict[str, Any]:
    """Return vLLM's speculative_config within settings of verl; {} if they are none."""
    found: Any = settings
    for key in VERL_DRAFTS:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _ranges(path: Path, settings: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Return the ranges of the file; raises InputError unless they follow one another from 1 on."""
    try:
        ranges = msgspec.convert(settings.get(TABLE), list[tuple[Batch, Batch, Drafts]])
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


def _check_policy(path: Path, policy: str) -> bool:
    """Return whether the file has its origin beside it; raises InputError if that names another table."""
    origin = path.with_name(f"{path.name}.provenance.json")
    if not origin.is_file():
        return False
    try:
        meant = msgspec.json.decode(origin.read_bytes(), type=Origin).policy
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(origin.name, str(error), "the origin of an export", "export again") from None
    if parse_policy(meant) != parse_policy(policy):  # which is the same table, whatever its last batch
        raise InputError(path.name, policy, f"{meant}, as {origin.name} says", "export again")
    return True
