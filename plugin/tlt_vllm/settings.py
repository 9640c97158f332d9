"""What a user says in the one file that TLT_PLUGIN names, and the errors of it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from tltsched.errors import InputError

Mode = Literal["watch", "advise", "control"]
MEASURED = "measured"


class StepTimesSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where step times come from, for policies that need them."""

    source: str = MEASURED
    """`measured`: the plugin measures them in the engine's first engine steps (mode control alone); else a
    JSON file: step times, or a scheduler.json that holds some (`tlt real step-times` writes one)."""
    engine_steps: int = 24
    """Engine steps to measure of each draft configuration, at each of the batches that come by."""

    def __post_init__(self) -> None:
        if self.engine_steps < 3:
            raise InputError(
                "step_times.engine_steps", self.engine_steps, "3 or more", "their median is taken"
            )


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings."""

    mode: Mode = "watch"
    """watch: write facts, change nothing; advise: also write what the policy would have chosen; control: the
    policy chooses K in each engine step."""
    out: str
    """The folder of the job; each engine gets a folder of its own in it."""
    policy: str = "goodput"
    """As `--policies` takes it: chains alone, at most as deep as the engine is configured to draft."""
    name: str = "live"
    """Of the run."""
    seed: int = 0
    """Of policies that draw at random."""
    rollout_gap_s: float = 1.0
    """An engine without requests for so long has ended its rollout; new weights and sleep end it at once."""
    step_times: StepTimesSettings = StepTimesSettings()
    speculation: dict[str, Any] = {}
    """vLLM's speculative_config for engines that are started without one (mode control alone)."""
    graphs: Literal["every_k", "stock"] = "every_k"
    """every_k: in mode control on CUDA, capture graphs for each K of the policy; stock: as vLLM does."""

    def __post_init__(self) -> None:
        if not self.out:
            raise InputError("out", self.out, "a folder", "name where the facts of the job go")
        if not self.rollout_gap_s >= 0:
            raise InputError("rollout_gap_s", self.rollout_gap_s, "0 or more seconds", "correct it")


def read_settings(path: Path) -> Settings:
    """Read the file; raises InputError that names the file and what is wrong in it.

    A relative `out` or `step_times.source` counts from the folder of the file.
    """
    try:
        settings = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Settings)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        fields = ", ".join(Settings.__struct_fields__)
        raise InputError("TLT_PLUGIN", f"{path}: {error}", f"a TOML file of {fields}", "correct it") from None
    beside = path.resolve().parent
    times = settings.step_times
    if times.source != MEASURED:
        times = msgspec.structs.replace(times, source=str(beside / times.source))
    return msgspec.structs.replace(settings, out=str(beside / settings.out), step_times=times)
