"""What is kept of one policy while it trains: each finished step, and the checkpoint to go on from.

    training.json          what the parts belong to (Stamp)
    parts/0003.msgpack     one finished step (tlt.realrun.driver.step.LiveStep)
    checkpoint/0004/       all that step 4 starts from; the newest only

A step that is newer than the checkpoint is forgotten when the run goes on, because its policy is gone.
"""

from __future__ import annotations

import hashlib
import shutil
from contextlib import suppress
from pathlib import Path

import msgspec

from tlt.realrun.driver.part_file import part_paths, read_parts, run_of, write_part
from tlt.realrun.driver.plan import PolicyPlan
from tlt.realrun.driver.step import LiveStep, records_of
from tlt.realrun.training_config import TrainConfig
from tlt.traces.common.manifest import is_whole, sealed, verify_all
from tlt.traces.runs.runfolder import RunFolder, read_struct, write_json
from tltsched.errors import InputError
from tltsched.event_log import Record, encode, worker_owner

STAMP, PARTS, CHECKPOINTS, HEADS = "training.json", "parts", "checkpoint", "heads"
SAVING = "saving"  # a checkpoint that is not complete
WEIGHTS = ".safetensors"
RESTORE = "restore a copy, or choose another --out: what came later was trained on it"


class Stamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the parts of a folder belong to."""

    config: TrainConfig
    policy: PolicyPlan
    complete: bool = False


class PolicyLog:
    """The finished steps of one policy."""

    def __init__(self, folder: Path, config: TrainConfig, policy: PolicyPlan) -> None:
        """Open `folder`, new or of the same settings; raises InputError if it holds something else.

        More `steps` than before are allowed: the run grows. Of a finished run no part is read.
        """
        self.folder = folder
        self.steps: list[LiveStep] = []
        self.complete = False
        self._stamp = Stamp(config, policy)
        self._run = self._run_of(config, policy)
        begun = self._begun()
        if begun is not None:
            self._check_steps(begun, config.steps)
            self.complete = begun.complete and begun.config.steps == config.steps
        (folder / PARTS).mkdir(parents=True, exist_ok=True)
        (folder / HEADS).mkdir(exist_ok=True)
        if not self.complete:
            self._forget_unsaved()
            write_json(folder / STAMP, self._stamp)

    def _begun(self) -> Stamp | None:
        """Return what the folder was begun with; None if nothing is kept in it.

        Each part says what it belongs to: they are believed rather than a stamp that is gone or damaged.
        """
        path, parts = self.folder / STAMP, part_paths(self.folder / PARTS)
        stamp = None
        with suppress(InputError):
            stamp = read_struct(path, Stamp)
            same = self._run_of(stamp.config, stamp.policy) == self._run
            if same and not (stamp.complete and parts and len(parts) != stamp.config.steps):
                return stamp
        if any(run_of(part) == self._run for part in parts):
            return self._begun_with_parts()
        if stamp is not None or parts:
            raise InputError(
                "--out", str(self.folder), "a new folder, or one of the same settings",
                "choose another one: measurements are not overwritten",
            )  # fmt: skip
        lost = path.is_file() and not (self.folder / "summary.json").exists()  # before its first step ended
        if self.folder.is_dir() and any(self.folder.iterdir()) and not lost:
            raise InputError("--out", str(self.folder), "a new or empty folder", "choose another one")
        return None

    def _begun_with_parts(self) -> Stamp:
        """Make the stamp anew: a run ended whose files are all of its last step."""
        self.read()
        count, saved = len(self.steps), self.checkpoint()
        self.steps.clear()
        config = msgspec.structs.replace(self._stamp.config, steps=count)
        ended = (
            is_whole(self.folder)
            and RunFolder(self.folder).summary().steps == count
            and (not config.checkpoint_every or (saved is not None and int(saved.name) == count))
        )
        stamp = Stamp(config, self._stamp.policy, ended)
        write_json(self.folder / STAMP, stamp)
        return stamp

    @staticmethod
    def _run_of(config: TrainConfig, policy: PolicyPlan) -> str:
        """Return the fingerprint of a run, however many steps it has."""
        of_run = msgspec.json.encode((msgspec.structs.replace(config, steps=1), policy))
        return hashlib.sha256(of_run).hexdigest()

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

    def _forget_unsaved(self) -> None:
        """Read the parts that the checkpoint covers; forget the others, whose policy is gone."""
        saved = self.checkpoint()
        last = int(saved.name) if saved else 0
        paths = part_paths(self.folder / PARTS)
        kept = [path for path in paths if int(path.stem) < last]
        if saved:
            verify_all(saved)
        if len(kept) != last:
            raise InputError(
                "finished steps", f"{len(kept)} in {self.folder / PARTS}",
                f"all {last} that checkpoint {saved} came from", RESTORE,
            )  # fmt: skip
        for path in paths[last:]:
            path.unlink()
        self.read()

    def read(self) -> None:
        """Read all parts; raises InputError if one is damaged or of another run."""
        self.steps = [step for _, step in read_parts(self.folder / PARTS, self._run, RESTORE)]

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
        with sealed(place / SAVING, (WEIGHTS,)):
            pass
        (place / SAVING).rename(place / f"{len(self.steps):04}")
        if before is not None:
            shutil.rmtree(before)

    def keep(self, step: LiveStep) -> None:
        """Write a finished step, whole or not at all."""
        write_part(self.folder / PARTS, self._run, step)
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
    saved = [place for place in (folder / CHECKPOINTS).glob("*") if place.name.isdecimal()]
    return max(saved, key=lambda place: int(place.name), default=None)
