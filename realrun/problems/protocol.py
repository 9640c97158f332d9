"""What a training run needs of its problems, and what they are made from.

A module of the user provides `make_problems(setup: ProblemsSetup) -> Problems`. Every worker calls it in its
own process, so problems must follow from the setup alone. Steps from 1,000,000 on are those of a head's
warm-up and measurement: no training step asks what they ask. They may have a third method besides,
`kinds(step)`, with the family, task or data set of each prompt of a step: kinds differ in acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from tlt.realrun.prompts import Prompt
from tlt.traces.common.settings import convert
from tltsched.errors import InputError

SETTINGS = "tasks.settings"
T = TypeVar("T", bound=msgspec.Struct)


@runtime_checkable
class Problems(Protocol):
    """Prompts of a step, and rewards of its responses."""

    def prompts(self, step: int) -> Sequence[Prompt]:
        """Return the prompt of every group of a step, as token ids [setup.prompts][tokens]."""

    def score(self, step: int, group: int, response: tuple[int, ...]) -> float:
        """Return the reward of a response, as token ids [tokens], to the prompt of `group`."""


class ProblemsSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What problems are made from. `settings` is the table [tasks.settings], which their maker checks."""

    model_folder: Path
    seed: int
    prompts: int  # groups of a step
    module: str = ""
    settings: dict[str, Any] = {}

    def read(self, kind: type[T]) -> T:
        """Return the settings as a struct; raises InputError that names the field."""
        try:
            return convert(self.settings, kind, self.module)
        except InputError as error:
            name = SETTINGS if error.field == "configuration" else f"{SETTINGS}.{error.field}"
            raise InputError(name, error.got, error.allowed, error.fix) from None
