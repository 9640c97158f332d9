"""The folder of a replay: each finished rollout as one part, and the run folders made from the parts.

    replay.json            what the parts belong to (Stamp)
    parts/POLICY/0003.msgpack one finished rollout (LiveStep); removed when all are done
    comparison.json, engine.json, lengths.parquet (where they are forced), and a run folder a policy
                           (tlt.traces.runs.runfolder)

A run folder holds the rounds that all policies have finished, so that a replay that was stopped can be read
and compared; the same command goes on with what is missing.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from tlt.realrun.config import RealConfig
from tlt.realrun.driver.engine_record import ENGINE, EngineRecord, engine_record
from tlt.realrun.driver.part_file import SUFFIX, part_paths, read_parts, run_of, write_part
from tlt.realrun.driver.plan import PolicyPlan
from tlt.realrun.driver.step import LiveStep, Loss, records_of
from tlt.realrun.replay.workload import Workload
from tlt.realrun.workers.messages import EngineInfo
from tlt.traces.common.manifest import MANIFEST, is_whole, sealed, verify_all
from tlt.traces.runs.runfolder import Comparison, read_struct, write_json
from tltsched.errors import InputError
from tltsched.event_log import CLUSTER, Record, encode, worker_owner
from tltsched.events import WorkerLost

STAMP, PARTS = "replay.json", "parts"


class Stamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the parts of a folder belong to."""

    fingerprint: str
    complete: bool = False


class RunLog:
    """Keeps finished rollouts and says what is missing."""

    def __init__(
        self, out: Path, config: RealConfig, plans: Sequence[PolicyPlan], workload: Workload
    ) -> None:
        """Open `out`, new or of the same settings; raises InputError if it holds something else."""
        self.out = out
        self._config = config
        self._plans = plans
        self._stamp = Stamp(_fingerprint(config, plans, workload))
        self._kept: dict[str, dict[int, LiveStep]] = {plan.name: {} for plan in plans}
        self.complete = False
        begun = (out / STAMP).is_file() or any(out.glob(f"{PARTS}/*/*{SUFFIX}"))
        if begun:
            if self._reopen():
                return
        elif out.is_dir() and any(out.iterdir()):
            raise InputError("--out", str(out), "a new or empty folder", "choose another one")
        shutil.rmtree(out / PARTS, ignore_errors=True)
        (out / ENGINE).unlink(missing_ok=True)
        out.mkdir(parents=True, exist_ok=True)
        workload.write(out)
        for plan in plans:
            (out / PARTS / plan.folder).mkdir(parents=True)
        write_json(out / STAMP, self._stamp)

    def _reopen(self) -> bool:
        """Read what is finished; returns False if nothing is, so that other settings may begin here."""
        parts = list(self.out.glob(f"{PARTS}/*/*{SUFFIX}"))
        try:
            stamp = read_struct(self.out / STAMP, Stamp)
        except InputError as error:
            if not parts:
                raise InputError(
                    error.field, error.got, f"{STAMP} as it was written",
                    "what is finished can be read without it; choose another --out to measure again",
                ) from None  # fmt: skip
            stamp = self._stamp
        # Each part says what it belongs to: they are believed rather than a stamp that is gone or damaged.
        if stamp.fingerprint != self._stamp.fingerprint and any(
            run_of(path) == self._stamp.fingerprint for path in parts
        ):
            stamp = self._stamp
        if stamp is self._stamp:
            write_json(self.out / STAMP, stamp)
        if not stamp.complete and not parts:
            return False
        if stamp.fingerprint != self._stamp.fingerprint:
            raise InputError(
                "--out", str(self.out), "a new folder, or one of like settings, lengths and formats",
                "choose another one: measurements are not overwritten",
            )  # fmt: skip
        self.complete = stamp.complete
        if not self.complete:
            (self.out / MANIFEST).unlink(missing_ok=True)  # what it lists is made anew, or is in the parts
        for plan in self._plans:
            for _, rollout in read_parts(self.out / PARTS / plan.folder, self._stamp.fingerprint):
                self._kept[plan.name][rollout.step] = rollout
        return True

    def has(self, policy: str, step: int) -> bool:
        """Return whether that rollout is finished."""
        return step in self._kept[policy]

    def kept(self, policy: str, rounds: int | None = None) -> list[LiveStep]:
        """Return the finished rollouts of a policy in order, those before `rounds` if given."""
        return [roll for step, roll in sorted(self._kept[policy].items()) if rounds is None or step < rounds]

    def losses(self) -> list[Loss]:
        """Return the workers that died, each once."""
        return [loss for kept in self._kept.values() for roll in kept.values() for loss in roll.losses]

    def known_deaths(self, policy: str) -> set[int]:
        """Return the workers of whose death this policy's scheduler was told."""
        bodies = (record.body for record in self.records(policy, CLUSTER))
        return {body.worker for body in bodies if isinstance(body, WorkerLost)}

    def records(self, policy: str, owner: str) -> list[Record]:
        """Return what is on record of one scheduler of a policy."""
        return records_of(self.kept(policy), owner)

    def lines(self, policy: str, worker: int) -> tuple[bytes, ...]:
        """Return the lines of one worker's scheduler."""
        return tuple(encode(record) for record in self.records(policy, worker_owner(worker)))

    def elapsed_s(self, policy: str) -> float:
        """Return where the clock of a policy stands."""
        kept = self.kept(policy)
        return kept[-1].end_s if kept else 0.0

    def keep(self, rollout: LiveStep) -> None:
        """Write a finished rollout, whole or not at all."""
        (plan,) = [plan for plan in self._plans if plan.name == rollout.policy]
        write_part(self.out / PARTS / plan.folder, self._stamp.fingerprint, rollout)
        self._kept[rollout.policy][rollout.step] = rollout

    def discard(self, policy: str) -> None:
        """Remove the finished rollouts of a policy: it begins anew."""
        (plan,) = [plan for plan in self._plans if plan.name == policy]
        for path in part_paths(self.out / PARTS / plan.folder):
            path.unlink()
        self._kept[policy].clear()

    def note_engine(self, info: EngineInfo, warm_up_s: float) -> EngineRecord:
        """Write engine.json; raises InputError if an earlier call of this replay ran on another engine."""
        record = engine_record(info, warm_up_s, self._config)
        before = self._engine_before()
        if before is not None:
            for field in ("engine", "engine_version", "device", "torch"):
                if getattr(before, field) != getattr(record, field):
                    raise InputError(
                        field, getattr(record, field), f"{getattr(before, field)}, which the rest ran on",
                        "measure all rollouts on one engine: choose another --out",
                    )  # fmt: skip
            record = before
        write_json(self.out / ENGINE, record)
        return record

    def _engine_before(self) -> EngineRecord | None:
        """Return what the finished rollouts ran on: each run folder says it as well; None if no file does."""
        for folder in (self.out, *(self.out / plan.folder for plan in self._plans)):
            with suppress(InputError):
                return read_struct(folder / ENGINE, EngineRecord)
        return None

    def mend(self, workload: Workload) -> None:
        """Make the files of a finished replay anew that are known from its run folders and settings.

        Raises InputError if a run folder is damaged: it is all that is left of its measurement.
        """
        folders = [self.out / plan.folder for plan in self._plans]
        for folder in folders:
            verify_all(folder)
        if not is_whole(self.out) and all(map(is_whole, folders)):
            workload.write(self.out)
            write_json(self.out / ENGINE, read_struct(folders[0] / ENGINE, EngineRecord))
            self.compare()

    def compare(self) -> None:
        """Write comparison.json, once there is a run folder of each policy."""
        names = tuple(plan.folder for plan in self._plans)
        with sealed(self.out):
            write_json(self.out / "comparison.json", Comparison(name=self._config.name, runs=names))

    def finish(self) -> None:
        """Note that nothing is missing, and remove the parts."""
        write_json(self.out / STAMP, msgspec.structs.replace(self._stamp, complete=True))
        shutil.rmtree(self.out / PARTS)


def _fingerprint(config: RealConfig, plans: Sequence[PolicyPlan], workload: Workload) -> str:
    digest = hashlib.sha256(msgspec.json.encode((config, list(plans))))
    digest.update(msgspec.msgpack.encode(workload.rollouts))
    return digest.hexdigest()
