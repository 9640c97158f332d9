"""Sessions under every schedule that takes them: workers, tools and trainers act in any order."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.tltsched.test_schedules_machine import LONGEST, SPECS
from tests.tltsched.test_schedules_machine import Cluster as Responses
from tltsched.cluster_config import ClusterConfig
from tltsched.commands import CallTools, ClusterCommand, Drop, Restart
from tltsched.event_log import RecordedCluster, Recorder, SchedulerSetup, build_cluster
from tltsched.events import RequestsFinished, ToolsReturned, TurnsEnded, WorkerLost
from tltsched.policies.none import NoneConfig
from tltsched.schedules import ScheduleSpec
from tltsched.schedules.cluster_view import Capacity
from tltsched.sessions.routing import RULE_NAMES, RoutingConfig
from tltsched.spot import SpotConfig

MOST_TURNS = 4


class Sessions(Responses):
    """Fake workers and tools; a session has a number of turns, at the end of which it needs its tool."""

    @initialize(
        workers=st.integers(1, 5),
        spec=st.sampled_from([spec for spec in SPECS if spec.sessions]),
        phases=st.sampled_from(((), ("reward",), ("reward", "weight_sync"))),
        spot=st.booleans(),
        groups=st.integers(1, 4),
        samples=st.integers(1, 3),
        rule=st.sampled_from(sorted(RULE_NAMES)),
        balance=st.sampled_from((0, 64)),
        tools_at_once=st.integers(0, 3),
    )
    def build(  # type: ignore[override]
        self, workers: int, spec: ScheduleSpec, phases: tuple[str, ...], spot: bool, groups: int,
        samples: int, rule: str, balance: int, tools_at_once: int,
    ) -> None:  # fmt: skip
        super().build(workers, spec, phases, spot, groups, samples, 150.0)
        routing = RoutingConfig(rule=RULE_NAMES[rule])
        if rule == "prefix":
            routing = RoutingConfig(rule="prefix", balance_requests=balance)
        self.config = ClusterConfig(
            schedule=spec, phases=phases, spot=SpotConfig(enabled=spot and not spec.overlaps),
            routing=routing, tools_at_once=tools_at_once,
        )  # fmt: skip
        self.setup = SchedulerSetup(
            workers=workers, policy=NoneConfig(), cluster=self.config,
            capacity=Capacity(max_running=4, kv_tokens=150.0),
        )  # fmt: skip
        self.cluster = RecordedCluster(build_cluster(self.setup), Recorder(self.lines.append))
        self.turns_left: dict[int, int] = {}
        self.began: dict[int, int] = {}  # tokens at the begin of a turn behind the first
        self.called: dict[int, None] = {}  # tools that run
        self.queued: dict[int, None] = {}  # sessions that wait for their tool

    def carry_out(self, command: ClusterCommand) -> None:
        match command:
            case CallTools(requests=requests):
                assert requests
                for request in requests:
                    assert next(iter(self.queued)) == request, "a tool was called out of turn"
                    del self.queued[request]
                    self.called[request] = None
                limit = self.config.tools_at_once
                assert not limit or len(self.called) <= limit, "more tools at once than may be"
                return
            case Restart(requests=requests) | Drop(requests=requests):
                for request in requests:
                    self.called.pop(request, None)
                    self.queued.pop(request, None)
                    self.turns_left.pop(request, None)
                    self.began.pop(request, None)
            case _:
                placed = getattr(command, "requests", ()) if hasattr(command, "worker") else ()
                assert not self.called.keys() & set(placed), "a session is at its tool and on a worker"
                assert not self.queued.keys() & set(placed), "a session is at its tool and on a worker"
        super().carry_out(command)

    @precondition(lambda self: self.busy())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """Sessions of a worker end a turn, or are done."""
        worker = data.draw(st.sampled_from(self.busy()))
        chosen = data.draw(st.lists(st.sampled_from(list(self.on[worker])), min_size=1, unique=True))
        turns, done = [], []
        for request in chosen:
            left = self.turns_left.setdefault(request, data.draw(st.integers(0, MOST_TURNS)))
            room = self.length[request] - self.generated[request]
            (turns if left and room > 1 else done).append(request)
        for request in chosen:
            del self.on[worker][request]
        for request in turns:
            most = self.length[request] - 1
            self.generated[request] = data.draw(st.integers(self.generated[request] + 1, most))
            self.turns_left[request] -= 1
            self.began[request] = self.generated[request]
            self.queued[request] = None
        self.finished.update(done)
        if turns:
            tokens = tuple(self.generated[request] for request in turns)
            self.tell(TurnsEnded(self.t_s, worker, tuple(turns), tokens))
        if done:
            self.tell(RequestsFinished(self.t_s, worker, tuple(done), 0))

    @precondition(lambda self: getattr(self, "called", None))
    @rule(data=st.data())
    def return_from_tools(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(list(self.called)), min_size=1, unique=True))
        tokens = tuple(data.draw(st.integers(0, 30)) for _ in chosen)
        ended = tuple(request for request in chosen if data.draw(st.integers(0, 9)) == 0)
        for request in chosen:
            del self.called[request]
        self.finished.update(ended)
        self.tell(ToolsReturned(self.t_s, tuple(chosen), tokens, ended))

    @precondition(lambda self: len(getattr(self, "on", ())) > 1)
    @rule(data=st.data(), sure=st.integers(0, 9))
    def lose_worker(self, data: st.DataObject, sure: int) -> None:
        """A worker dies: its sessions begin their turns anew; those at their tools have lost a cache."""
        if sure:
            return
        worker = data.draw(st.sampled_from(list(self.on)))
        for request in self.on.pop(worker):
            self.generated[request] = self.began.get(request, 0)
        self.withdrawing.pop(worker)
        self.training.pop(worker, None)
        self.tell(WorkerLost(self.t_s, worker))

    @invariant()
    def somebody_can_act(self) -> None:
        if hasattr(self, "called") and self.stepping:
            told = any(self.training.values()) or any(self.withdrawing.values())
            assert self.busy() or told or self.phase or self.called

    @invariant()
    def whoever_waits_for_a_tool_does_so_because_of_the_limit(self) -> None:
        if getattr(self, "queued", None):
            assert len(self.called) == self.config.tools_at_once > 0

    @invariant()
    def nothing_is_longer_than_it_may_be(self) -> None:
        assert all(tokens <= LONGEST for tokens in getattr(self, "generated", {}).values())


Sessions.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestSessions = pytest.mark.slow(Sessions.TestCase)
