"""The points of a sweep: `hardware.gpus=32,64` and the like, every combination."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import msgspec

from tlt.sim.config import Config, resolve
from tlt.sim.unused import refuse_unused
from tlt.traces.common.settings import merge, settings_of
from tltsched.errors import InputError
from tltsched.written.parameters import with_parameters

POLICY = "policy"  # the axis of policies, POLICY@SCHEDULE included
SCHEDULE = "cluster.schedule."  # a parameter of whichever schedule a point has, one that the policy names too
MOST_POINTS = 1_000_000
OPENING, CLOSING = "([{", ")]}"


class Axis(msgspec.Struct, frozen=True):
    """A field and its values, as they were written."""

    field: str
    values: tuple[str, ...]


class Point(msgspec.Struct, frozen=True):
    """One combination: the value of each axis, and the configuration or why there is none."""

    values: tuple[str, ...]
    config: Config | None
    error: str = ""


def axis(text: str) -> Axis:
    """Read `field=value,value`; commas inside of brackets or quotes are part of a value.

    Raises InputError.
    """
    field, equals, listed = text.partition("=")
    values = tuple(split(listed))
    if not equals or not field.strip() or not values or len(set(values)) != len(values):
        raise InputError(
            "--grid", text, "field=value,value,... with each value once", "--grid hardware.gpus=32,64"
        )
    return Axis(field.strip(), values)


def split(listed: str) -> list[str]:
    """Return the values of a list separated by commas."""
    values, depth, quote = [""], 0, ""
    for letter in listed:
        if letter == "," and not depth and not quote:
            values.append("")
            continue
        values[-1] += letter
        if quote or letter in "\"'":
            quote = "" if letter == quote else quote or letter
        else:
            depth += (letter in OPENING) - (letter in CLOSING)
    return [value.strip() for value in values if value.strip()]


def points(settings: dict[str, Any], axes: Sequence[Axis]) -> list[Point]:
    """Return every combination, the last axis the fastest. Combinations that cannot be have their error.

    Raises InputError for axes that stand twice, too many points, and a grid of which no point can be.
    """
    fields = [each.field for each in axes]
    if not axes or len(set(fields)) != len(fields):
        raise InputError("--grid", " ".join(fields), "one axis or more, each once", "name other fields")
    count = 1
    for each in axes:
        count *= len(each.values)
    if count > MOST_POINTS:
        raise InputError("--grid", f"{count:,} points", f"at most {MOST_POINTS:,}", "leave values out")
    found = [_point(settings, fields, values) for values in product(*(each.values for each in axes))]
    if all(point.config is None for point in found):
        raise InputError("--grid", f"{count:,} points", "one that can be", f"the first: {found[0].error}")
    return found


def _point(settings: dict[str, Any], fields: Sequence[str], values: tuple[str, ...]) -> Point:
    policy, parameters = None, dict[str, str]()
    try:
        for field, value in zip(fields, values, strict=True):
            if field == POLICY:
                policy = value
            elif field.startswith(SCHEDULE):
                parameters[field.removeprefix(SCHEDULE)] = value
            else:
                settings = merge(settings, settings_of(None, (f"{field}={value}",)))
        config = resolve(settings, policy)
        spec = with_parameters(config.cluster.schedule_spec(), parameters, "schedule")
        cluster = msgspec.structs.replace(config.cluster, schedule=spec)
        config = msgspec.structs.replace(config, cluster=cluster)
        refuse_unused(settings, config)
        return Point(values, config)
    except InputError as error:
        return Point(values, None, str(error))
