"""A prepared folder: it appears under its name only when it is complete, and is not made again then."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tlt.traces.runs.runfolder import read_struct, write_json
from tltsched.errors import InputError

RECORD = "prepared.json"

Report = Callable[[str], None]


class Prepared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a prepared folder holds, in its prepared.json."""

    kind: str
    name: str
    weights: str
    seed: int = 0
    draft_vocab: int = 0
    noise: float = 0.0
    vocab: int = 0


def silent(message: str) -> None:
    """Report nothing."""


@contextmanager
def making(folder: Path, record: Prepared, report: Report) -> Iterator[Path | None]:
    """Give a place to write to that becomes `folder` at the end; None if `folder` is complete already."""
    if (folder / RECORD).is_file():
        made = read_struct(folder / RECORD, Prepared)
        if made != record:
            allowed = f"an empty place, or {record}"
            raise InputError("folder", f"{folder} with {made}", allowed, "give another folder, or remove it")
        report(f"{folder} is complete")
        yield None
        return
    if folder.exists() and any(folder.iterdir()):
        raise InputError("folder", str(folder), "a new or empty folder", "give another one")
    place = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    place.mkdir(parents=True)
    try:
        yield place
        write_json(place / RECORD, record)
        if folder.exists():
            folder.rmdir()
        place.rename(folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    report(f"{folder} written")


def copy_all_but_weights(source: Path, place: Path) -> None:
    """Copy a model folder's configuration, tokenizer and the like, but neither weights nor its record."""
    for path in sorted(source.iterdir()):
        if path.is_file() and ".safetensors" not in path.suffixes and path.name != RECORD:
            shutil.copy(path, place / path.name)


def turn_ends(folder: Path) -> tuple[int, ...]:
    """Return the tokens at which an engine ends a response of the model in `folder`, as vLLM reads them."""
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            end = read_struct(folder / name, dict[str, Any]).get("eos_token_id")
            if end is not None:
                return tuple(end) if isinstance(end, list) else (end,)
    return ()


def save_weights(place: Path, weights: dict[str, Any]) -> None:
    """Write tensors as the weights of a model folder."""
    from safetensors.torch import save_file

    save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
