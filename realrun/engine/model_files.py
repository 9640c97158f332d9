"""config.json and tensors of model folders, which may be cut, gone or of another kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tlt.traces.runs.runfolder import read_struct
from tltsched.errors import InputError

COUNTS = (
    "vocab_size", "draft_vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings",
)  # fmt: skip
FORMATS = ("float32", "bfloat16", "float16", "float64")
LAYERS = "eagle_aux_hidden_state_layer_ids"
MOST = 2**31
RESTORE = "restore a copy, or prepare it again"


def read_config(folder: Path, *needed: str) -> dict[str, Any]:
    """Return the config.json of a model folder, as `checked` does."""
    path = folder / "config.json"
    return checked(read_struct(path, dict[str, Any]), path, *needed)


def checked(found: dict[str, Any], path: Path, *needed: str) -> dict[str, Any]:
    """Return the fields of a config.json; raises InputError if one is needed and lacks, or cannot be.

    Other fields are left alone: architectures that nobody here looks into have their own.
    """
    for name in needed:
        value = found.get(name)
        if value is None:
            allowed = f"one with {', '.join(needed)}"
            raise InputError("model folder", f"{path} without {name}", allowed, RESTORE)
        if name in COUNTS and not _is_count(value):
            raise InputError(f"{name} of {path}", value, f"a whole number from 1 to {MOST - 1}", RESTORE)
        if name == LAYERS and not (
            isinstance(value, list) and value and all(type(each) is int for each in value)
        ):
            raise InputError(f"{name} of {path}", value, "numbers of layers", RESTORE)
    if "hidden_size" in needed:
        _check_decoder(found, path)
    return found


def _check_decoder(found: dict[str, Any], path: Path) -> None:
    """Raise InputError unless norms, rotary embedding and number format are those of a decoder."""
    rope = found.get("rope_parameters") or found.get("rope_scaling") or {}
    reals = [found.get("rms_norm_eps"), found.get("rope_theta")]
    reals += [rope.get("rope_theta")] if isinstance(rope, dict) else [math.nan]
    if not all(value is None or _is_positive(value) for value in reals):
        got = f"rms_norm_eps or the rotary embedding of {path}"
        raise InputError("model folder", got, "positive numbers, as transformers writes them", RESTORE)
    for name in ("torch_dtype", "dtype"):
        if found.get(name, FORMATS[0]) not in (*FORMATS, None):
            raise InputError(f"{name} of {path}", found[name], ", ".join(FORMATS), RESTORE)


def require_whole(folder: Path) -> None:
    """Raise InputError for a config.json that is none, or weights that were cut, before an engine does."""
    from safetensors import SafetensorError, safe_open

    if (folder / "config.json").is_file():
        read_config(folder)
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "pt"):
                pass
        except SafetensorError as error:
            raise _cut(path, error) from None


def _cut(path: Path, why: object, fix: str = RESTORE) -> InputError:
    return InputError("weights", f"{path}: {why}", "a whole safetensors file", fix)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 < value < MOST


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and type(value) is not bool and 0 < value < math.inf


def read_tensors(path: Path, fix: str = RESTORE) -> dict[str, Any]:
    """Return the tensors of a file by name, on the host; raises InputError if it is no whole file of them."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found: dict[str, Any] = load_file(path)
    except (SafetensorError, FileNotFoundError) as error:
        why = "it is not there" if isinstance(error, FileNotFoundError) else str(error)
        raise _cut(path, why, fix) from None
    return found


def named_tensors(folder: Path, names: Sequence[str], may_lack: Sequence[str] = ()) -> dict[str, Any]:
    """Return the tensors of a model folder, of one file or several, that have these names.

    Raises InputError if a file is no whole one, or a tensor is in none of them and not in `may_lack`.
    """
    from safetensors import SafetensorError, safe_open

    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "pt") as file:
                found |= {name: file.get_tensor(name) for name in file.keys() if name in names}  # noqa: SIM118
        except SafetensorError as error:
            raise _cut(path, error) from None
    lacking = [name for name in names if name not in found and name not in may_lack]
    if lacking:
        allowed = "the weights of a dense Llama or Qwen model"
        raise InputError("weights", f"{folder} without {', '.join(lacking[:3])}", allowed, RESTORE)
    return found
