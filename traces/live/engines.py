"""What the plugin wrote of each engine of a job (tlt.plugin.facts), read back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tlt.plugin.facts import (
    ENGINE,
    ENGINES,
    FACTS,
    RECORDS,
    Advice,
    AnyFact,
    EngineFacts,
    Fault,
    Finished,
    RolloutOver,
    RolloutStarted,
    Step,
    Weights,
)
from tlt.traces.runs.runfolder import read_struct
from tltsched.errors import InputError
from tltsched.event_log import Record, read


@dataclass
class Rollout:
    """One rollout of one engine. Seconds count from the start of the engine."""

    began: RolloutStarted
    end_s: float
    reason: str = "unfinished"  # the engine was killed, or still runs
    steps: list[Step] = field(default_factory=list)
    done: list[Finished] = field(default_factory=list)


@dataclass
class EngineLog:
    """All that one engine left. `torn` counts lines that were not written whole."""

    about: EngineFacts
    rollouts: list[Rollout] = field(default_factory=list)
    weights: list[Weights] = field(default_factory=list)
    advice: list[Advice] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    torn: int = 0


def is_live(folder: Path) -> bool:
    """Return whether the plugin has written into this folder."""
    return any((folder / ENGINES).glob(f"*/{ENGINE}"))


def newest_s(folder: Path) -> float:
    """Return when the plugin wrote into this folder last, as the file system has it."""
    return max(path.stat().st_mtime for path in (folder / ENGINES).glob("*/*") if path.is_file())


def read_engines(folder: Path) -> list[EngineLog]:
    """Return the engines of a job, in order of their numbers; raises InputError if there is none.

    A line that an engine was killed in is counted, and any other that is none raises InputError.
    """
    found = sorted((folder / ENGINES).glob(f"*/{ENGINE}"))
    if not found:
        raise InputError(
            "FOLDER", str(folder), f"a folder that the plugin wrote, with {ENGINES}/0000/{ENGINE}",
            "give what `out` names in the file of TLT_PLUGIN",
        )  # fmt: skip
    return [_read_engine(path.parent) for path in found]


def _read_engine(folder: Path) -> EngineLog:
    log = EngineLog(read_struct(folder / ENGINE, EngineFacts))
    decode = msgspec.json.Decoder(AnyFact).decode
    for number, line in enumerate(_whole_lines(folder / FACTS, log), 1):
        try:
            take(log, decode(line))
        except msgspec.MsgspecError as error:
            raise InputError(
                str(folder / FACTS), f"line {number}: {error}", "lines that the plugin wrote",
                "take the line out, or the engine's folder",
            ) from None  # fmt: skip
    log.records = list(read(_whole_lines(folder / RECORDS, log)))
    return log


def _whole_lines(path: Path, log: EngineLog) -> Iterator[bytes]:
    if not path.is_file():
        return
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield line
            else:
                log.torn += 1


def take(log: EngineLog, fact: AnyFact) -> None:
    """Put a fact where it belongs; engine steps outside of a rollout are those of a fault's aftermath."""
    rollout = log.rollouts[-1] if log.rollouts else None
    match fact:
        case RolloutStarted():
            log.rollouts.append(Rollout(fact, fact.t_s))
        case Step() if rollout is not None:
            rollout.steps.append(fact)
            rollout.end_s = max(rollout.end_s, fact.t_s + fact.seconds)
        case Finished() if rollout is not None:
            rollout.done.append(fact)
            rollout.end_s = max(rollout.end_s, fact.t_s)
        case RolloutOver() if rollout is not None:
            rollout.reason = fact.reason
        case Weights():
            log.weights.append(fact)
        case Advice():
            log.advice.append(fact)
        case Fault():
            log.faults.append(fact)
        case _:
            pass
