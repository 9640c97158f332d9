"""Settings from a TOML file and `--set section.field=value`, checked against msgspec structs."""

from __future__ import annotations

import difflib
import re
import tomllib
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Meta

from tlt.traces.common.bounds import require_bounds, require_size
from tlt.traces.common.migrate import upgraded_settings
from tltsched.errors import InputError
from tltsched.policies import POLICIES

T = TypeVar("T", bound=msgspec.Struct)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the sections of a configuration."""


def merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return `below` with the fields of `above` on top, section by section."""
    merged = dict(below)
    for key, value in above.items():
        nested = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if nested else value
    return merged


def _assignment(text: str) -> dict[str, Any]:
    """Read `a.b=3` as {"a": {"b": 3}}; a value that is no TOML is a string."""
    path, equals, value = text.partition("=")
    if not equals or not all(part.isidentifier() for part in path.strip().split(".")):
        raise InputError("--set", text, "section.field=value", "for example --set workload.steps=20")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):
        parsed = value.strip()
    for part in reversed(path.strip().split(".")):
        parsed = {part: parsed}
    return dict(parsed)


def _read(path: Path) -> dict[str, Any]:
    require_size(path, "--config")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("--config", str(path), "a readable TOML file", str(error)) from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:  # the last: an int of 5,000 digits
        raise InputError("--config", str(path), "valid TOML", f"correct it: {error}") from None


def settings_of(path: Path | None, assignments: tuple[str, ...]) -> dict[str, Any]:
    """Return what the user set, as nested tables: the file, then each assignment on top.

    Fields may have the names of version 1. Raises InputError for a field that has its old and its new one.
    """
    settings = upgraded_settings(_read(path)) if path else {}
    for text in assignments:
        settings = merge(settings, upgraded_settings(_assignment(text)))
    return settings


def convert(settings: dict[str, Any], kind: type[T], help_command: str) -> T:
    """Return the settings as `kind`; raises InputError that names the field."""
    _require_finite(settings, "")
    try:
        found = msgspec.convert(settings, kind)
    except msgspec.ValidationError as error:
        raise _explained(error, settings, kind, help_command) from None
    require_bounds(found)
    return found


def _explained(
    error: msgspec.ValidationError, settings: dict[str, Any], kind: type[msgspec.Struct], help_command: str
) -> InputError:
    """Return the error that names the field, the value that was given and what the field may hold."""
    message, _, path = str(error).partition(" - at `$.")
    where = path.rstrip("`")
    inner = error.__cause__
    if isinstance(inner, InputError):  # a check of ours, which msgspec wrapped
        name = f"{where}.{inner.field}" if where and "." not in inner.field else inner.field
        return InputError(name, inner.got, inner.allowed, inner.fix)
    see = f"`{help_command}` lists every field"
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", message)
    if unknown:
        known, prefix = _names_in(settings, where, kind), f"{where}." if where else ""
        near = difflib.get_close_matches(unknown[1], known, n=1)
        fix = f"did you mean {prefix}{near[0]}?" if near else see
        name = prefix + unknown[1]
        return InputError(name, _given(settings, name), ", ".join(known), fix)
    meaning = next((text for name, _, text in fields(kind) if name == re.sub(r"\[.*", "", where)), "")
    if where.endswith("kind") and where.startswith("policy."):
        meaning = ", ".join(str(policy.__struct_config__.tag) for policy in POLICIES)
    expected = re.sub(r"^Expected (.*?)(, got .*)?$", r"\1", message)
    both = [text for text in ("" if message.startswith("Invalid") and meaning else expected, meaning) if text]
    return InputError(where or "configuration", _given(settings, where), "; ".join(both), see)


def _names_in(settings: dict[str, Any], where: str, kind: type[msgspec.Struct]) -> list[str]:
    """Return the names of the fields of a section, or of a policy table of some kind."""
    table = _given(settings, where)
    if isinstance(table, dict) and "kind" in table:
        return [name for policy in POLICIES if policy.__struct_config__.tag == table["kind"]
                for name in policy.__struct_fields__]  # fmt: skip
    prefix = f"{where}." if where else ""
    inside = [name[len(prefix) :] for name, _, _ in fields(kind) if name.startswith(prefix)]
    return list(dict.fromkeys(name.partition(".")[0] for name in inside))


def _given(settings: dict[str, Any], where: str) -> object:
    """Return what the user set at a path such as `hardware.gpus` or `cluster.phases[0]`."""
    value: Any = settings
    for part in re.findall(r"[^.\[\]]+", where):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, (list, tuple)) and part.isdecimal():
            value = value[int(part)]
        else:
            break
    return value


def _require_finite(value: object, where: str) -> None:
    """Raise InputError that names the field if a number anywhere in a configuration is NaN or infinite."""
    if isinstance(value, dict):
        for name, inner in value.items():
            _require_finite(inner, f"{where}.{name}" if where else str(name))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _require_finite(inner, where)
    elif isinstance(value, float) and not isfinite(value):
        raise InputError(where, value, "finite numbers", "give a number")


def fields(kind: type[msgspec.Struct], prefix: str = "") -> list[tuple[str, str, str]]:
    """Return (name, default, meaning) of every field that a configuration file may set."""
    rows: list[tuple[str, str, str]] = []
    for field in msgspec.structs.fields(kind):
        default = field.default if field.default is not msgspec.NODEFAULT else None
        if isinstance(default, msgspec.Struct):
            rows += fields(type(default), f"{prefix}{field.name}.")
            continue
        meta = getattr(field.type, "__metadata__", ())
        meaning = next((item.description for item in meta if isinstance(item, Meta) and item.description), "")
        rows.append((prefix + field.name, msgspec.json.encode(default).decode(), meaning))
    return rows
