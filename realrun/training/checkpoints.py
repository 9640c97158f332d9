"""What is kept of one policy while it trains: each finished step, and the checkpoint to go on from.

    training.json          what the parts belong to (Stamp)
    parts/0003.msgpack     one finished step (tlt.realrun.driver.step.LiveStep)
    checkpoint/0004/       all that step 4 starts from; the newest only

A step that is newer than the checkpoint is forgotten when the run goes on, because its policy is gone.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import msgspec

from tlt.realrun.driver.part_file import part_paths, read_parts, write_part
from tlt.realrun.driver.plan import PolicyPlan
from tlt.realrun.driver.step import LiveStep, records_of
from tlt.realrun.training_config import TrainConfig
from tlt.traces.runs.runfolder import read_struct, write_json
from tltsched.errors import InputError
from tltsched.event_log import Record, encode, worker_owner

STAMP, PARTS, CHECKPOINTS, HEADS = "training.json", "parts", "checkpoint", "heads"
SAVING = "saving"  # a checkpoint that is not complete


class Stamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the parts of a folder belong to."""

    config: TrainConfig
    policy: PolicyPlan
    complete: bool = False


class PolicyLog:
    """The finished steps of one policy."""

    def __init__(self, folder: Path, config: TrainConfig, policy: PolicyPlan) -> None:
        """Open `folder`, new or of the same settings; raises InputError if it holds something else.

        More `steps` than before are allowed: the run grows.
        """
        self.folder = folder
        self.steps: list[LiveStep] = []
        self.complete = False
        if (folder / STAMP).is_file():
            stamp = read_struct(folder / STAMP, Stamp)
            if _without_steps(stamp.config) != _without_steps(config) or stamp.policy != policy:
                raise InputError(
                    "--out", str(folder), "a new folder, or one of the same settings",
                    "choose another one: measurements are not overwritten",
                )  # fmt: skip
            self._check_steps(stamp, config.steps)
            self.complete = stamp.complete and stamp.config.steps == config.steps
        elif folder.is_dir() and any(folder.iterdir()):
            raise InputError("--out", str(folder), "a new or empty folder", "choose another one")
        (folder / PARTS).mkdir(parents=True, exist_ok=True)
        (folder / HEADS).mkdir(exist_ok=True)
        self._stamp = Stamp(config, policy)
        of_run = msgspec.json.encode((_without_steps(config), policy))
        self._fingerprint = hashlib.sha256(of_run).hexdigest()
        if not self.complete:
            write_json(folder / STAMP, self._stamp)
        self._read()

    def _check_steps(self, stamp: Stamp, steps: int) -> None:
        """Refuse steps that a finished run cannot have without losing what was measured."""
        if not stamp.complete or steps == stamp.config.steps:
            return
        if steps < stamp.config.steps:
            raise InputError(
                "steps", steps, f"the {stamp.config.steps} of the finished run in {self.folder}, or more",
                "choose another --out: measurements are not overwritten",
            )  # fmt: skip
        if self.checkpoint() is None:
            raise InputError(
                "steps", steps, f"{stamp.config.steps}: the finished run in {self.folder} left no checkpoint",
                "choose another --out, with checkpoint_every above 0 if it is to grow",
            )  # fmt: skip

    def _read(self) -> None:
        """Read the parts that the checkpoint, or the end of the run, covers; forget the others."""
        saved = self.checkpoint()
        last = int(saved.name) if saved else 0
        if not self.complete:
            for path in part_paths(self.folder / PARTS):
                if int(path.stem) >= last:
                    path.unlink()
        self.steps += [step for _, step in read_parts(self.folder / PARTS, self._fingerprint)]

    def checkpoint(self) -> Path | None:
        """Return the newest complete checkpoint; its name is the step that starts from it."""
        return newest_checkpoint(self.folder)

    def new_checkpoint(self) -> Path:
        """Return an empty folder for the parts of a checkpoint."""
        place = self.folder / CHECKPOINTS / SAVING
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        return place

    def commit(self) -> None:
        """Make the checkpoint that was just saved the one to go on from."""
        before = self.checkpoint()
        place = self.folder / CHECKPOINTS
        (place / SAVING).rename(place / f"{len(self.steps):04}")
        if before is not None:
            shutil.rmtree(before)

    def keep(self, step: LiveStep) -> None:
        """Write a finished step, whole or not at all."""
        write_part(self.folder / PARTS, self._fingerprint, step)
        self.steps.append(step)

    def records(self, owner: str) -> list[Record]:
        """Return what is on record of one scheduler."""
        return records_of(self.steps, owner)

    def lines(self, worker: int) -> tuple[bytes, ...]:
        """Return the lines of one worker's scheduler."""
        return tuple(encode(record) for record in self.records(worker_owner(worker)))

    def elapsed_s(self) -> float:
        """Return where the policy's clock stands."""
        return self.steps[-1].end_s if self.steps else 0.0

    def finish(self) -> None:
        """Note that no step is missing."""
        self.complete = True
        write_json(self.folder / STAMP, msgspec.structs.replace(self._stamp, complete=True))


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint of a policy's folder; it is named by the step it starts."""
    saved = (folder / CHECKPOINTS).glob("[0-9]*")
    return max(saved, key=lambda place: int(place.name), default=None)


def _without_steps(config: TrainConfig) -> TrainConfig:
    return msgspec.structs.replace(config, steps=1)
