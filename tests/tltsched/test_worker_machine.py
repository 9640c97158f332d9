"""Any order of events that an engine can produce, against the invariants of a worker's scheduler."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.tltsched.all_policies import POLICIES, TIMES
from tltsched.commands import SetDraftConfig
from tltsched.draft_config import OFF
from tltsched.errors import ProtocolError
from tltsched.event_log import RecordedWorker, Recorder, SchedulerSetup, build_worker, encode, read, replay
from tltsched.events import BatchFormed, DecisionEnded, RolloutBegan, RolloutEnded, WorkerEvent
from tltsched.policies.base import Rng


def make_rng(worker: int) -> Rng:
    return Random(1000 + worker)  # noqa: S311


class WorkerMachine(RuleBasedStateMachine):
    """A fake engine: it runs the drafts that it is given, and finishes and admits requests as it likes."""

    @initialize(policy=st.sampled_from(POLICIES), t_s=st.floats(0, 10))
    def build(self, policy: object, t_s: float) -> None:
        self.setup = SchedulerSetup(workers=1, policy=policy, step_times=TIMES)  # type: ignore[arg-type]
        self.lines: list[bytes] = []
        self.scheduler = build_worker(self.setup, 0, make_rng)
        self.worker = RecordedWorker(self.scheduler, Recorder(self.lines.append))
        self.t_s, self.step, self.next_request = t_s, 0, 0
        self.running: list[int] = []
        self.draft: SetDraftConfig | None = None
        self.rolling = False
        self.version = 0
        self.decoded_off = False  # since the drafter was last used, or in the prefill of the batch
        self.started: set[int] = set()
        self.finished: list[int] = []

    def tell(self, event: WorkerEvent) -> None:
        commands = self.worker.handle(event)
        assert len(commands) <= 1
        self.draft = commands[0] if commands else None
        assert (self.draft is not None) == bool(self.running and self.rolling)

    @precondition(lambda self: not self.rolling)
    @rule(version=st.integers(-1, 2))
    def begin(self, version: int) -> None:
        self.rolling, self.version, self.decoded_off = True, version, False
        self.tell(RolloutBegan(self.t_s, 0, self.step, version))
        self.step += 1

    @precondition(lambda self: self.rolling)
    @rule(admitted=st.integers(1, 40))
    def admit(self, admitted: int) -> None:
        first = not self.running
        new = range(self.next_request, self.next_request + admitted)
        self.next_request += admitted
        self.running.extend(new)
        self.started.update(new)
        self.tell(BatchFormed(self.t_s, 0, len(self.running), 1000 * len(self.running)))
        if first:
            assert self.draft is not None
            self.decoded_off = self.draft.draft_config == OFF

    @precondition(lambda self: self.draft is not None)
    @rule(
        engine_steps=st.integers(0, 70),
        finish=st.integers(0, 40),
        rate=st.floats(0, 1),
        engine_step_s=st.floats(1e-4, 1),
    )
    def run_decision_interval(
        self, engine_steps: int, finish: int, rate: float, engine_step_s: float
    ) -> None:
        draft, batch, ran = self.draft, len(self.running), tuple(self.running)
        assert draft is not None
        engine_steps = min(engine_steps, draft.max_engine_steps or engine_steps)
        finish = min(finish, batch) if engine_steps else 0
        done, self.running = tuple(self.running[:finish]), self.running[finish:]
        self.finished.extend(done)
        accepted = tuple(int(rate ** (j + 1) * engine_steps * batch) for j in range(draft.draft_config.depth))
        if engine_steps:
            self.decoded_off = draft.draft_config == OFF
        if not self.running:
            self.decoded_off = False
        self.t_s += engine_steps * engine_step_s
        left, drafted = len(self.running), engine_steps if draft.draft_config.depth else 0
        most = drafted * draft.draft_config.depth
        rows = tuple((request, drafted, min(int(rate * drafted) * (request % 3), most)) for request in ran)
        self.tell(
            DecisionEnded(
                *(
                    self.t_s,
                    0,
                    draft.draft_config,
                    engine_steps,
                    engine_steps * batch,
                    engine_steps * engine_step_s,
                    accepted,
                    done,
                ),
                *(left, 1000 * left),
                rows if drafted and self.scheduler.wants_requests else (),
            )
        )

    @precondition(lambda self: self.rolling)
    @rule()
    def end(self) -> None:
        self.rolling, self.running = False, []
        self.tell(RolloutEnded(self.t_s, 0))

    @rule(event=st.sampled_from(["begin", "back", "stranger", "decision_interval"]))
    def break_the_protocol(self, event: str) -> None:
        if event == "back" and self.t_s > 0 and len(self.lines):
            bad: WorkerEvent = BatchFormed(-1.0, 0, 1, 1)
        elif event == "stranger":
            bad = RolloutBegan(self.t_s, 1, 0, 0)
        elif event == "begin" and self.rolling:
            bad = RolloutBegan(self.t_s, 0, 0, 0)
        elif event == "decision_interval" and self.draft is None:
            bad = DecisionEnded(self.t_s, 0, OFF, 1, 1, 0.1, (), (), 1, 1)
        else:
            return
        with pytest.raises(ProtocolError):
            self.scheduler.handle(bad)

    @invariant()
    def a_draft_can_be_carried_out(self) -> None:
        draft = getattr(self, "draft", None)
        if draft is None:
            return
        policy = self.scheduler.policy
        assert draft.draft_config in policy.draft_configs or self.version == -1
        assert draft.draft_config == OFF or self.version >= 0
        assert 1 <= draft.min_requests <= len(self.running), "a decision interval that ends before it begins"
        assert draft.max_engine_steps is None or draft.max_engine_steps >= 1
        due = draft.draft_config != OFF and self.decoded_off and policy.when_off == "drafter_dropped"
        assert draft.resume_cost == (policy.resume_cost if due else "none")

    @invariant()
    def no_request_finishes_twice(self) -> None:
        finished = getattr(self, "finished", [])
        assert len(set(finished)) == len(finished)
        assert set(finished) <= getattr(self, "started", set())

    def teardown(self) -> None:
        if hasattr(self, "lines"):
            again = [encode(record) for record in replay(self.setup, read(self.lines), make_rng)]
            assert again == self.lines


WorkerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestWorker = WorkerMachine.TestCase
