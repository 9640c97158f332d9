"""Rollout schedules by name. A schedule is one file here, and one line in ScheduleSpec."""

from __future__ import annotations

from typing import get_args

import msgspec

from tltsched.errors import InputError, look_up
from tltsched.schedules.base import ScheduleConfig
from tltsched.schedules.bounded_async import BoundedAsyncConfig
from tltsched.schedules.divided import DividedConfig
from tltsched.schedules.longest_first import LongestFirstConfig
from tltsched.schedules.oversample_partial import OversamplePartialConfig
from tltsched.schedules.repack import RepackConfig
from tltsched.schedules.synchronous import SynchronousConfig
from tltsched.schedules.tail_batching import TailBatchingConfig
from tltsched.written.parameters import split_parameters, with_parameters

ScheduleSpec = (
    SynchronousConfig
    | LongestFirstConfig
    | OversamplePartialConfig
    | TailBatchingConfig
    | RepackConfig
    | DividedConfig
    | BoundedAsyncConfig
)  # fmt: skip

SCHEDULES: tuple[type[ScheduleConfig], ...] = get_args(ScheduleSpec)

# Names that users type.
PRESETS: dict[str, ScheduleSpec] = {
    "synchronous": SynchronousConfig(),
    "longest_first": LongestFirstConfig(),
    "oversample_partial": OversamplePartialConfig(),
    "oversample_abort": OversamplePartialConfig(partial=False),
    "tail_batching": TailBatchingConfig(),
    "repack": RepackConfig(),
    "divided": DividedConfig(),
    "bounded_async": BoundedAsyncConfig(),
    "one_step_off": BoundedAsyncConfig(order="admission", pause="wait"),
}


def schedule_name(spec: ScheduleSpec) -> str:
    """Return the name of the preset that these settings are, or else the kind of the schedule."""
    return next((name for name, preset in PRESETS.items() if preset == spec), str(spec.__struct_config__.tag))


def parse_schedule(text: str) -> ScheduleSpec:
    """Read the name of a preset, NAME(FIELD=VALUE,...), or bounded_async:SHARE for its trainer_share.

    Raises InputError that lists the names and the nearest one.
    """
    whole, given = split_parameters(text, "schedule")
    name, colon, argument = whole.partition(":")
    spec = with_parameters(look_up(PRESETS, "schedule", name), given, "schedule")
    if not colon:
        return spec
    try:
        share = float(argument)
    except ValueError:
        share = 0.0
    if not isinstance(spec, BoundedAsyncConfig) or not 0.0 < share < 1.0:
        raise InputError(
            "schedule", text, "bounded_async:SHARE, a share above 0 and below 1", "leave out the colon"
        )
    return msgspec.structs.replace(spec, trainer_share=share)
