"""Puts a simulated cluster together, runs it, and writes what every run folder holds.

A simulation and the simulation of a measured run are both assembled here, so that they seed alike: one stream
a worker of those that roll out and those that train, then one for all that requests draw, then one for
samples beyond those of the trace. Schedulers draw from generators of their own (traces.common.seeds).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pandas as pd

from tlt.sim.acceptance.process import Acceptance
from tlt.sim.model.clock import Clock
from tlt.sim.model.cluster import Cluster
from tlt.sim.model.draft_counts import DraftCounts
from tlt.sim.model.drafter import DrafterConfig
from tlt.sim.model.engines.engine import Engine
from tlt.sim.model.engines.jump_engine import JumpEngine
from tlt.sim.model.engines.running_batch import Limits
from tlt.sim.model.phases import Phases
from tlt.sim.model.requests import StepRequests
from tlt.sim.model.sessions.turns import SessionWork, Turns
from tlt.sim.model.suffix_drafts import drafter_of
from tlt.sim.model.worker import Listener, Worker
from tlt.sim.steptimes.tables import StepCosts
from tlt.traces.common.manifest import sealed
from tlt.traces.common.seeds import CLUSTER, scheduler_rng, sequence
from tlt.traces.common.writing import replacing
from tlt.traces.lengths.stream import spare_samples
from tlt.traces.runs.records import RECORDS
from tlt.traces.runs.request_acceptance import write_acceptance
from tlt.traces.runs.runfolder import RunFolder, SessionFacts, Summary
from tlt.traces.runs.step_log import schedule_facts
from tltsched.errors import InputError, ProtocolError
from tltsched.event_checks import MOST_S
from tltsched.event_log import (
    RecordedCluster,
    RecordedWorker,
    Recorder,
    SchedulerSetup,
    build_cluster,
    build_worker,
)

StepDone = Callable[[int], None]


def _silent(step: int) -> None:
    del step


class Outcome(NamedTuple):
    """A run that is done and written."""

    cluster: Cluster
    responses: pd.DataFrame
    summary: Summary


class Assembly(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulated cluster is made of. Nothing in it changes while the cluster runs."""

    setup: SchedulerSetup
    costs: StepCosts
    limits: Limits
    acceptance: Acceptance
    drafter: DrafterConfig
    phases: Phases
    engine: type[Engine] = JumpEngine
    trainers: int = 0  # workers that train the policy and nothing else, beside those of the setup
    lent: int = 0  # of the setup's workers, the last ones, that train and generate while they wait
    sessions: SessionWork | None = None  # what the requests are, if they have turns

    def run(
        self,
        steps: Sequence[StepRequests],
        recorder: Recorder | None = None,
        done: StepDone = _silent,
        counts: DraftCounts | None = None,
    ) -> Cluster:
        """Simulate all steps; `done(step)` is called after each. `counts` takes drafts by request."""
        setup = self.setup
        env = Clock(0.0)  # a float from the start, as in the records that a replay writes
        children = sequence(setup.seed, CLUSTER).spawn(setup.workers + self.trainers + 2)
        *engine_seeds, request_seed, _ = children
        engines: list[Engine] = []  # that compute a rollout at once, one after the other
        watch = setup.cluster.schedule_spec().watches or self.sessions is not None

        def make_worker(index: int, listener: Listener) -> Worker:
            engine = self.engine(self.costs, self.acceptance, np.random.default_rng(engine_seeds[index]))
            scheduler = build_worker(setup, index, partial(scheduler_rng, setup.seed))
            recorded = RecordedWorker(scheduler, recorder)
            ahead = recorder is None  # it records in the order of time
            if ahead and not watch:
                engines.append(engine)
                engine.take_turns(engines[0])
            engine.quicken(scheduler.policy)
            return Worker(env, recorded, engine, self.limits, listener, watch, ahead, bool(self.sessions))

        cluster = Cluster(
            env,
            RecordedCluster(build_cluster(setup), recorder),
            make_worker,
            setup.workers,
            self.trainers,
            drafter_of(self.drafter),
            self.phases,
            self.acceptance,
            np.random.default_rng(request_seed),
            spare_samples(setup.seed, setup.workers + self.trainers),
            counts,
            self.lent,
            Turns(self.sessions) if self.sessions else None,
        )
        try:
            env.run(env.process(cluster.run(steps, done)))
        except ProtocolError:
            if env.now <= MOST_S:
                raise
            raise InputError(
                "the settings", f"a run of {env.now:.3g} s", f"at most {MOST_S:.0e} s, three centuries",
                "look for a setting or step time that is far too long",
            ) from None  # fmt: skip
        return cluster

    def run_into(
        self,
        folder: Path,
        steps: Sequence[StepRequests],
        summarise: Callable[[Cluster], Summary],
        *,
        records: bool = True,
        acceptance: bool = True,
        done: StepDone = _silent,
    ) -> Outcome:
        """Simulate all steps and write the tables, the summary and the records into an existing folder.

        Without `records`, or without `acceptance`, that file is left out.
        """
        counts = DraftCounts() if acceptance else None
        with sealed(folder):
            if records:
                with replacing(folder / RECORDS) as part, part.open("wb") as file:
                    cluster = self.run(steps, Recorder(file.write), done, counts)
            else:
                cluster = self.run(steps, None, done, counts)
            responses, intervals, step_rows = cluster.tables()
            summary = summarise(cluster)
            write_acceptance(folder, cluster.draft_table())
            run = RunFolder(folder)
            run.write(summary, responses, intervals, step_rows)
            _write_schedule(run, cluster)
            self._write_sessions(run, cluster)
        return Outcome(cluster, responses, summary)

    def _write_sessions(self, folder: RunFolder, cluster: Cluster) -> None:
        """Write what came of sessions, if requests were such."""
        facts = self.session_facts(cluster)
        if facts is None or cluster.tools is None:
            for stale in ("sessions.json", "sessions.parquet"):  # of an earlier run into the same folder
                (folder.path / stale).unlink(missing_ok=True)
            return
        folder.write_sessions(facts, pd.concat(cluster.tools.turns.rows, ignore_index=True))

    def session_facts(self, cluster: Cluster) -> SessionFacts | None:
        """Return what the sessions of a finished run met with; None: requests were single responses."""
        if cluster.tools is None:
            return None
        config, counts = self.setup.cluster, [pool for worker in cluster.workers for pool in worker.pools]
        return SessionFacts(
            routing=config.routing_config().rule,
            tools_at_once=config.tools_at_once,
            tool_wait_kv="keep" if self.limits.keeps_waiting else "drop",
            turns=sum(pool.turns for pool in counts),
            asked_tokens=sum(pool.asked_tokens for pool in counts),
            found_tokens=sum(pool.found_tokens for pool in counts),
            again_tokens=sum(pool.again_tokens for pool in counts),
            timeouts=cluster.tools.turns.timeouts,
        )


def _write_schedule(folder: RunFolder, cluster: Cluster) -> None:
    """Write what the schedule did beside the time, unless it is the plain synchronous one."""
    facts = schedule_facts(cluster.scheduler.config)
    if facts is None:
        for stale in ("schedule.json", "schedule.parquet"):  # of an earlier run into the same folder
            (folder.path / stale).unlink(missing_ok=True)
        return
    folder.write_schedule(facts, pd.DataFrame(cluster.log.schedule_rows))
