"""Parameters of a policy or a schedule as users write them: NAME(FIELD=VALUE,FIELD=VALUE).

`bounded_async(trainer_share=0.5)`, `goodput(hysteresis=0.01)`, `static:4(when_off=k0)`. Values are numbers,
true or false, and words; a value that is a list or a table needs a configuration file.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from tltsched.errors import InputError, unknown_name

T = TypeVar("T", bound=msgspec.Struct)
FORM = "NAME(FIELD=VALUE,FIELD=VALUE)"


def split_parameters(text: str, field: str) -> tuple[str, dict[str, str]]:
    """Return the name and what stands in brackets behind it; raises InputError for another form."""
    name, bracket, inside = text.strip().partition("(")
    if not bracket:
        return name, {}
    if not inside.endswith(")") or not name:
        raise InputError(field, text, FORM, "close the bracket")
    given: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in inside[:-1].split(","))):
        key, equals, value = (side.strip() for side in part.partition("="))
        if not equals or not key or not value or key in given:
            raise InputError(field, text, FORM, f"give each parameter once and a value: {part!r}")
        given[key] = value
    return name, given


def with_parameters(spec: T, given: dict[str, str], field: str, listed: str = "") -> T:
    """Return the settings with what was given on top; raises InputError that lists what there is.

    listed: the command that lists them, where it is not `tlt sim FIELDs`.
    """
    if not given:
        return spec
    known = scalar_fields(spec)
    kind = str(spec.__struct_config__.tag)
    changes: dict[str, object] = {}
    for key, value in given.items():
        if not known:
            raise InputError(f"parameter of {kind}", key, "nothing: it has none", "leave the brackets out")
        if key not in known:
            raise unknown_name(
                f"parameter of {kind}", key, known, f"`{listed or f'tlt sim {field}s'}` lists them"
            )
        try:
            changes[key] = msgspec.convert(_plain(value), known[key], strict=False)
        except msgspec.ValidationError as error:
            raise InputError(f"{key} of {kind}", value, _expected(error), f"write {FORM}") from None
    return msgspec.structs.replace(spec, **changes)


def scalar_fields(spec: msgspec.Struct) -> dict[str, type]:
    """Return the type of each field that can be written in brackets, in order."""
    fields = msgspec.structs.fields(type(spec))
    return {
        each.name: each.type for each in fields if isinstance(getattr(spec, each.name), (int, float, str))
    }


def parameters_text(spec: msgspec.Struct) -> str:
    """Return the parameters of settings as they are written, defaults included; empty: there are none."""
    return ", ".join(f"{name}={_written(getattr(spec, name))}" for name in scalar_fields(spec))


def _plain(value: str) -> object:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    return value


def _written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _expected(error: msgspec.ValidationError) -> str:
    return str(error).partition(", got")[0].removeprefix("Expected ")


def listing(spec: msgspec.Struct) -> dict[str, object]:
    """Return what settings are: the first sentence of their text, and each parameter with its value."""
    what = " ".join((type(spec).__doc__ or "").strip().split("\n\n")[0].split())
    parameters = {name: _written(getattr(spec, name)) for name in scalar_fields(spec)}
    return {"what": what, "parameters": parameters}
