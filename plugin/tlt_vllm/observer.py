"""One engine as the plugin sees it: facts go to files, decisions come from its scheduler.

It is told of plans and outputs by the scheduler class that tlt_vllm.install makes, and holds nothing of vLLM
but what it is handed. Whatever it raises is caught there: the engine then decides for itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tltsched.cluster_config import ClusterConfig
from tltsched.draft_config import DraftConfig
from tltsched.errors import InputError
from tltsched.event_log import RecordedWorker, Recorder, SchedulerSetup, build_worker
from tltsched.events import BatchFormed, DecisionEnded
from tltsched.policies import PolicySpec, parse_policy
from tltsched.step_times import StepTimeTable

from .decisions import AdvisedDecisions, Adviser, Decisions
from .drafting import chains_of, depths, scheduler_rng
from .engine_step import EngineStepFacts
from .facts import (
    STEP_TIMES,
    Advice,
    Drained,
    EngineFacts,
    Fault,
    Finished,
    Measured,
    RolloutOver,
    RolloutStarted,
    Slept,
    Step,
    Weights,
    Woke,
)
from .hooks import EngineStep, Row
from .requests import Done, LiveRequests
from .settings import MEASURED, Settings
from .step_times import Measuring, read_step_times, share
from .writer import Writer


class Planned(msgspec.Struct, gc=False):
    """An engine step that was planned and has not come back."""

    t_s: float
    k: int
    rows: list[Row]
    compiled: int


class Observer:
    """Watches one engine, and decides for it in mode control."""

    def __init__(
        self, settings: Settings, writer: Writer, engine: EngineFacts, compilations: Callable[[], int]
    ) -> None:
        """`engine` says who it is, its mode and policy those that it will have.

        Raises InputError for a policy that this engine cannot follow, and OSError if nothing can be written.
        """
        self.engine = engine
        self._settings = settings
        self._writer = writer
        self._compilations = compilations
        self._origin_s = time.perf_counter() - (time.time() - engine.started_unix_s)
        self._requests = LiveRequests(engine.started_unix_s)
        self._deciding: list[Decisions] = []
        self._measuring: Measuring | None = None
        self._planned: deque[Planned] = deque()
        self._came: tuple[Planned, EngineStep, str] | None = None
        self._rollout = -1
        self._rolling = self._asleep = False
        self._updating: set[str] = set()  # what was changed since the last engine step
        self._drained_s: float | None = None
        self._returned_s = 0.0  # when the engine step before came back; 0: the engine had no requests then
        self._decided = 0
        self._policy_version, self._drafter_version = 0, 0 if engine.max_drafts else -1
        self._prepare()
        writer.begin(self.engine)

    @property
    def in_charge(self) -> bool:
        """Whether K is written into plans."""
        return self.engine.mode == "control"

    def now_s(self) -> float:
        """Return the engine's clock."""
        return time.perf_counter() - self._origin_s

    # --- who decides ----------------------------------------------------------------------------------

    def _prepare(self) -> None:
        engine, settings = self.engine, self._settings
        spec = parse_policy(engine.policy)
        if not self.in_charge:
            self._decide(spec, None)
        if engine.mode == "watch":
            return
        asked = parse_policy(settings.policy)
        policy = chains_of("policy", settings.policy, asked)
        deepest = depths(policy)[-1]
        if self.in_charge and deepest > engine.max_drafts:
            raise InputError(
                "policy", f"{settings.policy}, which drafts up to {deepest}",
                f"up to {engine.max_drafts}, as the engine is configured",
                "raise num_speculative_tokens, or name a policy such as "
                f"goodput:off+{'+'.join(str(k) for k in range(1, engine.max_drafts + 1)) or 0}",
            )  # fmt: skip
        times = self._step_times(asked, policy.draft_configs)
        if engine.mode == "advise":
            built = asked.build(scheduler_rng(settings.seed, engine.number), times)
            adviser = Adviser(engine.number, built, self._advise)
            self._deciding.append(AdvisedDecisions(adviser, self._requests.alive))
        elif self._measuring is None:
            self._decide(asked, times)

    def _step_times(self, spec: PolicySpec, needed: tuple[DraftConfig, ...]) -> StepTimeTable | None:
        """Return the step times of a policy; None if it needs none, or if they are to be measured."""
        settings = self._settings.step_times
        if not spec.needs_times:
            return None
        if settings.source != MEASURED:
            return read_step_times(Path(settings.source), needed)
        shared = Path(self._settings.out) / STEP_TIMES
        if shared.is_file():
            return read_step_times(shared, needed)
        if not self.in_charge:
            raise InputError(
                "step_times.source", MEASURED, "a file, in mode advise: the engine runs its own K alone",
                "write one with `tlt real step-times`, or advise with a policy that needs none",
            )  # fmt: skip
        self._measuring = Measuring(needed, settings.engine_steps, self.engine.max_running)
        return None

    def _decide(self, spec: PolicySpec, times: StepTimeTable | None) -> None:
        """Let a scheduler of this policy decide, or follow what the engine does if the policy is its own."""
        number = self.engine.number
        setup = SchedulerSetup(
            workers=number + 1, policy=spec, cluster=ClusterConfig(phases=()), step_times=times,
            seed=self._settings.seed,
        )  # fmt: skip
        scheduler = build_worker(setup, number, lambda worker: scheduler_rng(setup.seed, worker))
        recorded = RecordedWorker(scheduler, Recorder(self._writer.record))
        self._deciding.insert(0, Decisions(recorded, self._requests.alive))
        self.engine = msgspec.structs.replace(self.engine, setup=setup)

    def _advise(self, event: BatchFormed | DecisionEnded, actual: DraftConfig, advised: DraftConfig) -> None:
        self._writer.fact(
            Advice(
                t_s=event.t_s, requests=event.requests, context_tokens=event.context_tokens,
                advised=str(advised), actual=str(actual),
            )
        )  # fmt: skip

    def _measured(self, t_s: float, over: bool) -> None:
        """Let the policy begin if its step times are known."""
        measuring = self._measuring
        if measuring is None or not measuring.enough(over):
            return
        self._measuring = None
        table = share(Path(self._settings.out), measuring.table())
        self._decide(parse_policy(self._settings.policy), table)
        self._writer.begin(self.engine)
        self._writer.fact(Measured(t_s=t_s, engine_steps=measuring.engine_steps))
        if not over:
            self._deciding[0].begin(t_s, self._rollout, self._drafter_version)

    # --- rollouts -------------------------------------------------------------------------------------

    def _begin_rollout(self, t_s: float) -> None:
        self._rollout += 1
        self._rolling = True
        fact = RolloutStarted(
            t_s=t_s, rollout=self._rollout, policy_version=self._policy_version,
            drafter_version=self._drafter_version,
        )  # fmt: skip
        self._writer.fact(fact)
        for each in self._deciding:
            each.begin(t_s, self._rollout, self._drafter_version)

    def _end_rollout(self, t_s: float, reason: str) -> None:
        """End the rollout that is on, where it ran out of requests if it did."""
        if not self._rolling:
            return
        end_s = t_s if self._drained_s is None else self._drained_s
        self._rolling, self._drained_s = False, None
        self._requests.forget_drafts()
        for each in self._deciding:
            each.end(end_s)
        self._writer.fact(RolloutOver(t_s=end_s, rollout=self._rollout, reason=reason))
        self._measured(t_s, over=True)

    def updated(self, what: str) -> None:
        """Take in that weights were changed: `policy`, `drafter`, or `caches`, which were dropped.

        Calls without an engine step between them are one update.
        """
        if what == "caches" and self._asleep:  # sleep drops them, too
            return
        key = "drafter" if what == "drafter" else "policy"
        self._returned_s = 0.0
        if key in self._updating:
            return
        self._updating.add(key)
        t_s = self.now_s()
        if what == "drafter":
            self._drafter_version += 1
        else:
            self._policy_version += 1
        self._end_rollout(t_s, "caches" if what == "caches" else "weights")
        self._writer.fact(
            Weights(
                t_s=t_s, what=what, policy_version=self._policy_version,
                drafter_version=self._drafter_version,
            )
        )  # fmt: skip

    def slept(self, level: int) -> None:
        """Take in that the engine was put to sleep."""
        t_s, self._returned_s, self._asleep = self.now_s(), 0.0, True
        self._end_rollout(t_s, "sleep")
        self._writer.fact(Slept(t_s=t_s, level=level))

    def woke(self) -> None:
        """Take in that the engine was woken."""
        self._asleep = False
        self._writer.fact(Woke(t_s=self.now_s()))

    def stop(self, fault: str = "") -> None:
        """Write what is left; with `fault` say why no more will come."""
        t_s = self.now_s()
        if fault:
            self._writer.fact(Fault(t_s=t_s, text=fault))
        else:
            self._end_rollout(t_s, "shutdown")
        self._writer.close()

    # --- engine steps ---------------------------------------------------------------------------------

    def planned(self, plan: Any, rows: list[Row]) -> None:
        """Take in a plan before vLLM reserves room for its drafts; in mode control, write K into it.

        Raises RuntimeError if facts cannot be written any more.
        """
        if not rows:
            return
        if not self._writer.works():
            raise RuntimeError(self._writer.fault)
        t_s = self.now_s()
        self._updating.clear()
        if self._drained_s is not None and t_s - self._drained_s >= self._settings.rollout_gap_s:
            self._end_rollout(t_s, "drained")
        self._drained_s = None
        if not self._rolling:
            self._begin_rollout(t_s)
        self._requests.see([row.request for row in rows], t_s)
        prompts = any(row.prefill for row in rows)
        context = partial(_context_of_rows, rows)
        chosen = [each.planned(t_s, len(rows), context, prompts) for each in self._deciding]
        if self.in_charge:
            plan.num_spec_tokens_to_schedule = self._measuring.k if self._measuring else chosen[0]
        self._planned.append(Planned(t_s, plan.num_spec_tokens_to_schedule, rows, self._compilations()))

    def came(self, output: Any, engine_step: EngineStep) -> None:
        """Take in what came back of an engine step, before vLLM applies it."""
        stats = getattr(output, "cudagraph_stats", None)
        graph = str(getattr(stats, "runtime_mode", "")).rpartition(".")[2]
        self._came = (self._planned.popleft(), engine_step, graph)

    def applied(self, running: list[Any], requests: Mapping[str, Any]) -> None:
        """Take in that vLLM has applied it: `running` is its batch now, `requests` all that it holds."""
        if self._came is None:
            return
        (planned, engine_step, graph), self._came = self._came, None
        t_s, held = self.now_s(), len(requests)
        start_s = self._returned_s or planned.t_s  # an engine that is busy goes from one to the next
        self._returned_s = t_s if held else 0.0
        drafts = self._requests.drafts(engine_step.drafts)
        done = self._requests.done(requests)
        facts = EngineStepFacts(
            seconds=t_s - start_s, batch=engine_step.batch, context_tokens=engine_step.context_tokens,
            prompt_tokens=engine_step.prompt_tokens, drafted_tokens=engine_step.drafted_tokens,
            accepted_by_position=engine_step.accepted_by_position,
            finished=tuple(each.known.number for each in done), drafts=drafts,
            compiled=self._compilations() != planned.compiled, preempted=engine_step.preempted,
        )  # fmt: skip
        self._write_step(start_s, planned.k, facts, graph, held - len(running))
        for each in done:
            self._write_done(t_s, each)
        for decisions in self._deciding:
            decisions.came(t_s, facts, planned.k, held, partial(_context_tokens, running))
        if self._measuring:
            self._measuring.came(facts.batch, planned.k, facts.seconds, facts.prompt_tokens > 0)
            self._measured(t_s, over=False)
        decided = self._deciding[-1].decided if self._deciding else 0
        if decided != self._decided:
            self._decided = decided
            self._requests.forget_done()
        if not held:
            self._drained_s = t_s
            self._writer.fact(Drained(t_s=t_s))

    def _write_step(self, start_s: float, k: int, facts: EngineStepFacts, graph: str, waiting: int) -> None:
        self._writer.fact(
            Step(
                t_s=start_s, seconds=facts.seconds, batch=facts.batch, context_tokens=facts.context_tokens,
                k=k, prompt_tokens=facts.prompt_tokens, drafted_tokens=facts.drafted_tokens,
                accepted_by_position=facts.accepted_by_position, waiting=waiting, preempted=facts.preempted,
                compiled=facts.compiled, graph=graph,
            )
        )  # fmt: skip

    def _write_done(self, t_s: float, done: Done) -> None:
        known, request = done.known, done.known.request
        self._writer.fact(
            Finished(
                t_s=t_s, request=known.number, name=request.request_id, rollout=self._rollout,
                prompt=known.prompt, prompt_tokens=request.num_prompt_tokens,
                response_tokens=request.num_output_tokens, reason=str(request.get_finished_reason()),
                arrived_s=known.arrived_s, started_s=known.started_s, preemptions=request.num_preemptions,
                drafts=done.drafts,
            )
        )  # fmt: skip


def _context_tokens(running: list[Any]) -> int:
    """Return the tokens in the caches of a batch; drafts in flight are left out."""
    return sum(min(request.num_computed_tokens, request.num_tokens - 1) for request in running)


def _context_of_rows(rows: list[Row]) -> int:
    """Return the same of a planned batch."""
    return sum(min(row.context_tokens, row.request.num_tokens - 1) for row in rows)
