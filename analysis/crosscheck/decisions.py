"""Whether the schedulers decide today as they did in a run, and where two runs first decide differently."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path

from tlt.traces.common.seeds import scheduler_rng
from tlt.traces.runs.acceptance import length_with_bonus
from tlt.traces.runs.records import RECORDS, read_records, record_lines
from tlt.traces.runs.runfolder import read_struct
from tlt.traces.sources import ComparisonSource, RunSource, open_source
from tltsched.commands import Command, SetDraftConfig
from tltsched.errors import InputError, ProtocolError
from tltsched.event_log import Record, SchedulerSetup, encode, read, replay, worker_owner
from tltsched.events import BatchFormed, DecisionEnded, RolloutBegan

SETUP = "scheduler.json"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first line that differs (None: that side has ended), and the event that it answers."""

    line: int
    event: str
    recorded: str | None
    replayed: str | None


@dataclass(frozen=True, slots=True)
class DecisionReplay:
    """A run's records against what fresh schedulers make of its events."""

    folder: Path
    events: int
    commands: int
    recorded_sha256: str
    replayed_sha256: str
    difference: Difference | None

    def text(self) -> str:
        """Return the result in words."""
        if self.difference is None:
            return (
                f"{self.folder}: all {self.events + self.commands:,} lines are byte-identical "
                f"({self.events:,} events, {self.commands:,} commands), sha256 {self.recorded_sha256}"
            )
        found = self.difference
        return "\n".join(
            (
                f"{self.folder}: decisions differ from line {found.line:,} on",
                f"  event    {found.event}",
                f"  recorded {found.recorded or '(no line)'}",
                f"  replayed {found.replayed or '(no line)'}",
                f"  sha256   recorded {self.recorded_sha256}, replayed {self.replayed_sha256}",
            )
        )


def run_folders(folder: Path) -> tuple[Path, ...]:
    """Return the run folders of a comparison, or the folder itself: a run that was stopped has no summary."""
    source = open_source(folder)
    return source.folders if isinstance(source, RunSource | ComparisonSource) else (folder,)


def replay_decisions(folder: Path) -> DecisionReplay:
    """Feed the recorded events of a run folder to fresh schedulers and compare the lines byte by byte.

    Raises InputError if the folder has no records or setup. An event that the schedulers now refuse counts as
    a difference, with what they said.
    """
    setup = read_struct(folder / SETUP, SchedulerSetup)
    recorded, replayed = hashlib.sha256(), hashlib.sha256()
    counts = {False: 0, True: 0}
    event, difference = "(none)", None
    path = folder / RECORDS
    made = _replayed(setup, read_records(path))
    for number, (line, new) in enumerate(zip_longest(record_lines(path), made), 1):
        recorded.update(line or b"")
        replayed.update(new or b"")
        if line is not None:
            (record,) = read([line])
            counts[isinstance(record.body, Command)] += 1
            if not isinstance(record.body, Command):
                event = line.decode().strip()
        if difference is None and line != new:
            difference = Difference(number, event, _shown(line), _shown(new))
    return DecisionReplay(
        folder, counts[False], counts[True], recorded.hexdigest(), replayed.hexdigest(), difference
    )


def _replayed(setup: SchedulerSetup, records: Iterable[Record]) -> Iterator[bytes]:
    try:
        for record in replay(setup, records, partial(scheduler_rng, setup.seed)):
            yield encode(record)
    except ProtocolError as error:
        yield f"refused: {error}\n".encode()


def _shown(line: bytes | None) -> str | None:
    return None if line is None else line.decode().strip()


# --- two runs against one another -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Turn:
    """A change of draft configuration: in which rollout, for which batch, and after which facts."""

    step: int
    requests: int
    context_tokens: int
    draft_config: str
    engine_steps: int  # of the decision interval before; 0 at the start of a batch
    acceptance_length_with_bonus: float | None  # of the decision interval before
    engine_step_s: float | None

    def text(self) -> str:
        """Return the decision and its facts in words."""
        facts = [f"{self.requests} requests", f"{self.context_tokens:,} context tokens"]
        if self.engine_steps:
            facts.append(f"after {self.engine_steps} engine steps")
            facts.append(f"of {(self.engine_step_s or 0) * 1e3:.3f} ms")
            facts.append(
                f"accepting {self.acceptance_length_with_bonus or 1:.3f} tokens with the bonus token"
            )
        return f"rollout {self.step}: {self.draft_config} at {', '.join(facts)}"


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where one worker of two runs first decides differently; None: that run has no such decision."""

    worker: int
    agreed: int  # equal changes of draft configuration before it, in rollout and batch too
    ours: Turn | None
    theirs: Turn | None

    def fact(self) -> str:
        """Name what differed."""
        ours, theirs = self.ours, self.theirs
        if ours is None or theirs is None:
            return "the number of changes"
        if ours.step != theirs.step:
            return "the rollout in which the draft configuration changes"
        if ours.draft_config != theirs.draft_config:
            return (
                "the draft configuration, for the same batch"
                if ours.requests == theirs.requests
                else "the draft configuration and the batch"
            )
        return "the batch at which the draft configuration changes"

    def text(self, ours: Path, theirs: Path) -> str:
        """Return the divergence in words; the folders name the runs."""
        lines = [
            f"worker {self.worker}: after {self.agreed} equal changes of draft configuration, "
            f"{self.fact()} differs"
        ]
        for folder, turn in ((ours, self.ours), (theirs, self.theirs)):
            lines.append(f"  {folder}: {turn.text() if turn else '(no further change)'}")
        return "\n".join(lines)


def turns(folder: Path, worker: int) -> list[Turn]:
    """Return the changes of draft configuration of a worker, in order; each rollout begins anew."""
    found: list[Turn] = []
    owner, step, draft_config = worker_owner(worker), -1, ""
    facts: BatchFormed | DecisionEnded | None = None
    for record in read_records(folder / RECORDS):
        body = record.body
        if record.owner != owner:
            continue
        if isinstance(body, RolloutBegan):
            step, draft_config = body.step, ""
        elif isinstance(body, (BatchFormed, DecisionEnded)):
            facts = body
        elif isinstance(body, SetDraftConfig) and str(body.draft_config) != draft_config:
            draft_config = str(body.draft_config)
            assert facts is not None  # SetDraftConfig answers one of the two
            found.append(_turn(step, draft_config, facts))
    return found


def _turn(step: int, draft_config: str, facts: BatchFormed | DecisionEnded) -> Turn:
    engine_steps, length, engine_step_s = 0, None, None
    if isinstance(facts, DecisionEnded) and facts.engine_steps:
        engine_steps = facts.engine_steps
        length = length_with_bonus(sum(facts.accepted_by_position), facts.request_steps)
        engine_step_s = facts.decode_s / facts.engine_steps
    return Turn(step, facts.requests, facts.context_tokens, draft_config, engine_steps, length, engine_step_s)


def divergences(ours: Path, theirs: Path) -> list[Divergence]:
    """Return for each worker where the runs first decide differently; workers that agree are left out.

    Raises InputError if the runs have not the same number of workers.
    """
    workers = [read_struct(folder / SETUP, SchedulerSetup).workers for folder in (ours, theirs)]
    if workers[0] != workers[1]:
        raise InputError(
            "--against", workers[1], f"a run of {workers[0]} workers", "simulate the same cluster"
        )
    found = []
    for worker in range(workers[0]):
        pairs = zip_longest(turns(ours, worker), turns(theirs, worker))
        for agreed, (our, their) in enumerate(pairs):
            if our is None or their is None or _key(our) != _key(their):
                found.append(Divergence(worker, agreed, our, their))
                break
    return found


def _key(turn: Turn) -> tuple[int, int, str]:
    return turn.step, turn.requests, turn.draft_config
