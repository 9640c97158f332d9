"""Files and settings of version 1 of the formats, under the names of version 2.

Version 2 renamed keys, columns, kinds of events, a few values and five files, and the problem families of a
training run became a module that its settings name; nothing else changed. What is read goes through here,
nothing is written back. A name that a reader has as its own is never translated, so what is in version 2
already stays as it is.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from tltsched.errors import InputError

T = TypeVar("T")

# Old key or column -> what it is called now: the first of these that the reader has.
NAMES: dict[str, tuple[str, ...]] = {
    "arm": ("draft_config", "policy"),
    "arms": ("draft_configs", "policies"),
    "arms_by_batch": ("draft_configs_by_batch",),
    "cap_tokens": ("max_response_tokens",),
    "capped": ("truncated",),
    "compiled_cycles": ("compiled_engine_steps",),
    "cycle_s": ("engine_step_s",),
    "cycles": ("engine_steps",),
    "cycles_per_repeat": ("engine_steps_per_repeat",),
    "entry": ("resume_cost",),
    "epoch_cycles": ("decision_engine_steps",),
    "max_cycles": ("max_engine_steps",),
    "memory_cycles": ("memory_request_steps",),
    "off_state": ("when_off",),
    "probe_every_cycles": ("probe_every_engine_steps",),
    "request_cycles": ("request_steps",),
    "rungs": ("rounds",),
    "stretches": ("intervals",),
    "warmup_cycles": ("warmup_engine_steps",),
}
# New key -> its old values.
VALUES: dict[str, dict[str, str]] = {
    "when_off": {"plain": "not_configured", "in_step": "k0", "dropped": "drafter_dropped"},
    "resume_cost": {"drafter_fill": "draft_prefill"},
}
TAGS = {"epoch_ended": "decision_ended", "draft": "set_draft_config"}  # kinds of events and commands
FILES = {  # new name -> old name
    "engine_steps.parquet": "cycles.parquet",
    "predicted_engine_steps.parquet": "predicted_cycles.parquet",
    "cost_error.json": "posterior.json",
    "predicted_training.json": "retrain.json",
    "simulated_replay.json": "resimulation.json",
}
GONE = {"executor": "local"}  # old key -> the one value with which it says nothing any more
UNSAID = frozenset({"may_flip"})  # keys of results that are left out: what is lost says more
# Settings of a training run that the library had itself, and the module that has them now.
FAMILY_SETTINGS = ("names", "difficulty_smallest", "difficulty_largest", "difficulty_tail")
FAMILY_MODULE, WARM_UP = "examples/rl_smollm2/problems.py", "warm_up"
OLD_LINE = b'"arm":{'  # stands in every line of a record that version 2 writes otherwise, and in no new one
VERSION = "format_version"


def decode(content: bytes, kind: type[T]) -> T:
    """Decode JSON of version 1 or 2; raises msgspec.MsgspecError, and InputError as `upgraded` does."""
    return msgspec.convert(upgraded(msgspec.json.decode(content), kind), kind, str_keys=True)


def upgraded(value: Any, kind: Any) -> Any:
    """Return decoded JSON with the names that `kind`, a msgspec struct or any other type, has for them.

    Raises InputError where an old name stands beside the new one, or the version is newer than the kind's.
    """
    return _fitted(value, _shape(kind), "")


def upgraded_settings(table: dict[str, Any], where: str = "") -> dict[str, Any]:
    """Return a configuration as a user wrote it under today's names; raises InputError as `upgraded` does."""
    renamed = _under_new_names(table, None, where)
    return {
        name: upgraded_settings(inner, f"{where}{name}.") if isinstance(inner, dict) else inner
        for name, inner in renamed.items()
    }


def upgraded_settings_text(text: str) -> str:
    """Return a JSON list of configurations, as a calibration in progress has it; other text as it is."""
    try:
        sections = msgspec.json.decode(text, type=list[Any])
    except msgspec.MsgspecError:
        return text
    new = [upgraded_settings(section) if isinstance(section, dict) else section for section in sections]
    return msgspec.json.encode(new).decode()


def upgraded_line(text: bytes) -> bytes:
    """Return a line of a record as version 2 writes it; one of version 2, or of no record, as it is."""
    if OLD_LINE not in text:
        return text
    try:
        record = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        return text
    body = record.get("body")
    if not isinstance(body, dict) or body.get("kind") not in TAGS:
        return text
    body = _under_new_names(body, None, "body.") | {"kind": TAGS[body["kind"]]}
    end = text[len(text.rstrip(b"\r\n")) :]
    return msgspec.json.encode(record | {"body": body}) + end


def new_names(names: Iterable[str], known: Container[str] | None, where: str = "") -> dict[str, str]:
    """Return old -> new for the old ones among `names`, keys of a table or columns of a file.

    `known` are those that the reader has; None: all. Raises InputError if the new name is there as well.
    """
    given, found = list(names), {}
    for old in given:
        if old not in NAMES or (known is not None and old in known):
            continue
        new = next((name for name in NAMES[old] if known is None or name in known), None)
        if new in given:
            both = f"{where}{old} and {where}{new}"
            raise InputError(both, "two names of one thing", "one of them", f"keep {new} alone")
        if new is not None:
            found[old] = new
    return found


def names_today(names: Iterable[str], known: Container[str]) -> list[str]:
    """Return names of columns as `known` has them, in their order; raises InputError as `new_names` does."""
    given = list(names)
    new = new_names(given, known)
    return [new.get(name, name) for name in given]


def _under_new_names(table: dict[str, Any], known: Container[str] | None, where: str) -> dict[str, Any]:
    new = new_names(table, known, where)
    return {
        new.get(name, name): _value(new.get(name, ""), inner)
        for name, inner in table.items()
        if not _gone(name, inner) or (known is not None and name in known)
    }


def _gone(name: str, value: Any) -> bool:
    return name in UNSAID or (name in GONE and GONE[name] == value)


def _value(name: str, value: Any) -> Any:
    return VALUES[name].get(value, value) if name in VALUES and isinstance(value, str) else value


@lru_cache(maxsize=256)
def _shape(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _fitted(value: Any, shape: inspect.Type, where: str) -> Any:
    """Translate the keys of all tables in `value` that are structs of known fields; `where` ends in a dot."""
    match shape:
        case inspect.Metadata():
            return _fitted(value, shape.type, where)
        case inspect.UnionType():
            return _fitted(value, _branch(value, shape), where)
        case inspect.StructType() if isinstance(value, dict):
            return _struct(value, shape, where)
        case inspect.DictType() if isinstance(value, dict):
            return {
                name: _fitted(inner, shape.value_type, f"{where}{name}.") for name, inner in value.items()
            }
        case inspect.TupleType() if isinstance(value, list) and len(value) == len(shape.item_types):
            return [_fitted(inner, item, where) for inner, item in zip(value, shape.item_types, strict=True)]
        case inspect.VarTupleType() | inspect.ListType() if isinstance(value, list):
            return [_fitted(inner, shape.item_type, where) for inner in value]
    return value


def _branch(value: Any, union: inspect.UnionType) -> inspect.Type:
    """Return the type of a union that `value` is of: the struct of its tag, or the first one of its form."""
    plain = [shape.type if isinstance(shape, inspect.Metadata) else shape for shape in union.types]
    if isinstance(value, dict):
        structs = [shape for shape in plain if isinstance(shape, inspect.StructType)]
        for shape in structs:
            if shape.tag_field is None or value.get(shape.tag_field) == shape.tag:
                return shape
        return next((shape for shape in plain if isinstance(shape, inspect.DictType)), inspect.AnyType())
    lists = (inspect.TupleType, inspect.VarTupleType, inspect.ListType)
    return next((shape for shape in plain if isinstance(shape, lists)), inspect.AnyType())


def _struct(table: dict[str, Any], struct: inspect.StructType, where: str) -> dict[str, Any]:
    fields = {field.encode_name: field for field in struct.fields}
    renamed = _under_new_names(table, fields, where)
    renamed = _tasks(renamed, fields)
    renamed = _goodput(renamed, fields)
    if VERSION in renamed and VERSION in fields:
        renamed[VERSION] = _version(renamed[VERSION], fields[VERSION].default, where)
    return {
        name: _fitted(inner, fields[name].type, f"{where}{name}.") if name in fields else inner
        for name, inner in renamed.items()
    }


def _tasks(table: dict[str, Any], known: Container[str]) -> dict[str, Any]:
    """Return a table without what the settings of a training run, or its tasks, have elsewhere now."""
    if "tasks" in known and WARM_UP in table and WARM_UP not in known:
        return {name: inner for name, inner in table.items() if name != WARM_UP}
    old = {name: table[name] for name in FAMILY_SETTINGS if name in table}
    if not old or "module" not in known:
        return table
    kept = {name: inner for name, inner in table.items() if name not in old}
    other = kept.get("prompts") or kept.get("random_prompt_tokens")  # the families were not asked
    return kept if other else kept | {"module": FAMILY_MODULE, "settings": old}


def _goodput(table: dict[str, Any], known: Container[str]) -> dict[str, Any]:
    """Return a goodput policy with the rule that it had: runs keep all settings, and by_request is newer."""
    written_whole = "memory_request_steps" in table and "acceptance_prior" in table
    if "by_request" in known and "by_request" not in table and written_whole:
        return table | {"by_request": False}
    return table


def _version(given: Any, newest: int, where: str) -> Any:
    if not isinstance(given, int) or given < 1:
        return given  # no version at all: left for the check of types
    if given > newest:
        raise InputError(
            f"{where}{VERSION}", given, f"1 to {newest}", "a newer tool wrote it: install that version"
        )
    return newest
