"""Exports for engines that are not installed here, read by the rule that their source states.

SGLang can also be asked itself: `sglang_reader.py` is run by an interpreter that has it.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from tltsched.errors import InputError

SGLANG_RULE = "the rule of SGLang 0.5.23 (speculative/adaptive_spec_params.py)"
TRTLLM_RULE = "the rule of TensorRT-LLM at commit 00043967 (llmapi/llm_args.py, speculative/utils.py)"
SCHEDULE = "draft_len_schedule"
READER = Path(__file__).with_name("sglang_reader.py")
Keyed = dict[int, int]


MOST_BATCH = 65_536  # requests that run at once, in any engine


class Slot(msgspec.Struct, frozen=True):
    """What SGLang may draft from a batch on; it has more keys, which change nothing with one candidate."""

    candidate_steps: tuple[int, ...]


def is_sglang(settings: dict[str, Any]) -> bool:
    """Return whether a file is one of --speculative-adaptive-config."""
    return any(key.isdecimal() for key in settings)


def is_trtllm(settings: dict[str, Any]) -> bool:
    """Return whether a file is one of trtllm-serve with a schedule of draft lengths."""
    return SCHEDULE in _speculative(settings)


def sglang_lookup(settings: dict[str, Any], most: int) -> list[int]:
    """Return K at each batch size up to `most`, entry 0 standing for nothing.

    The slot of a batch is the one with the largest key that is not above it. Raises InputError for a slot
    with several candidates: SGLang then chooses by what was accepted, and the file is no table.
    """
    slots: Keyed = {}
    for key, written in settings.items():
        if not key.isdecimal():
            continue
        slot = _converted(written, Slot, f"slot {key}", '{"candidate_steps": [K]}')
        if len(slot.candidate_steps) != 1 or slot.candidate_steps[0] < 0:
            allowed = "one number of steps, 0 or more: with several SGLang chooses itself"
            raise InputError(f"slot {key}", slot.candidate_steps, allowed, "export --format sglang again")
        slots[_batch(key)] = slot.candidate_steps[0]
    first = min(slots)
    return [0, *(slots[max((key for key in slots if key <= batch), default=first)]
                 for batch in range(1, most + 1))]  # fmt: skip


def trtllm_lookup(settings: dict[str, Any], most: int) -> list[int]:
    """Return K at each batch size up to `most`, entry 0 standing for nothing.

    A key is the last batch of its length; above the largest key nothing is drafted. Raises InputError for
    what TensorRT-LLM refuses.
    """
    given = _speculative(settings)
    schedule = _converted(given.get(SCHEDULE), Keyed, SCHEDULE, '{"LAST_BATCH": LENGTH}')
    largest = _converted(given.get("max_draft_len"), int, "max_draft_len", "the largest length")
    if not schedule or min(schedule) < 1 or min(schedule.values()) < 0:
        raise InputError(SCHEDULE, schedule, "batches from 1 on and lengths of 0 or more", "export again")
    if schedule[min(schedule)] != largest or max(schedule.values()) > largest:
        allowed = f"the smallest batch with max_draft_len = {largest}, and none above it"
        raise InputError(SCHEDULE, schedule, allowed, "export again")
    keys = sorted(schedule)
    return [0, *(next((schedule[key] for key in keys if batch <= key), 0) for batch in range(1, most + 1))]


def last_batch(settings: dict[str, Any]) -> int:
    """Return the largest batch that a file names; raises InputError for one that no engine runs."""
    if is_sglang(settings):
        return max(_batch(key) for key in settings if key.isdecimal())
    schedule: Keyed = _converted(_speculative(settings)[SCHEDULE], Keyed, SCHEDULE, '{"LAST_BATCH": LENGTH}')
    return _batch(str(max(schedule, default=1)))


def _batch(key: str) -> int:
    if len(key) > len(str(MOST_BATCH)) or int(key) > MOST_BATCH:
        raise InputError("batch", key[:40], f"at most {MOST_BATCH:,}", "export again")
    return int(key)


def ask_sglang(python: Path, file: Path, most: int) -> tuple[str, list[int]]:
    """Return SGLang's version and its own lookup; raises InputError if it cannot read the file there."""
    fix = "give the interpreter of an environment with sglang, or leave --python out"
    if not python.is_file() or not os.access(python, os.X_OK):
        raise InputError("--python", str(python), "an interpreter with sglang", fix)
    command = [str(python), str(READER), str(file), str(most)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)  # noqa: S603 -- no shell
    if done.returncode:
        told = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise InputError(
            "--python", f"{python}: {told}", "an interpreter with sglang that reads the file", fix
        )
    version, lookup = msgspec.json.decode(done.stdout.splitlines()[-1], type=tuple[str, list[int]])
    return version, lookup


def _speculative(settings: dict[str, Any]) -> dict[str, Any]:
    section = settings.get("speculative_config")
    return section if isinstance(section, dict) else {}


def _converted(written: object, kind: Any, what: str, allowed: str) -> Any:
    try:
        return msgspec.convert(written, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InputError(what, str(error), allowed, "export again") from None
