"""The live worker: one engine under its scheduler; reads schedule -> run -> observe, as the simulated one.

An engine says only afterwards what an engine step did. So the engine step that turns out to admit requests is
held: the decision interval ends before it, and prefill begins with it. An engine step without a prompt that
ends a prefill is held, too, and becomes the first of the interval that follows.

Drafts are verified one engine step after they were made, or two where the engine plans ahead. So the first
step or two of a decision interval verify what the draft configuration before it drafted; a configuration that
goes on has no such edge.

Orders come between engine steps. Further requests are submitted at once; what takes requests away or changes
the weights (messages.Cut) ends the decision interval first. A worker that is `watched` reports each finish
with its engine step instead of at the end of the decision interval.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from tlt.plugin.engine_step import DecisionInterval, EngineStepFacts
from tlt.plugin.requests import AcceptanceCount, RequestCounts
from tlt.realrun.engine.protocol import Engine, EngineRequest
from tlt.realrun.workers.messages import (
    Abandon,
    Answer,
    Cut,
    EngineStep,
    Finish,
    Reload,
    Reloaded,
    Withdraw,
    Withdrawn,
    Work,
)
from tltsched.commands import SetDraftConfig
from tltsched.event_log import RecordedWorker
from tltsched.events import BatchFormed, DecisionEnded, RolloutBegan, RolloutEnded
from tltsched.worker import NO_DRAFTER

Drafts = tuple[SetDraftConfig, ...]
Orders = Callable[[bool], Sequence[Work | Cut]]


class Log:
    """What a worker has to report: finished responses and their acceptance, its time, engine steps."""

    def __init__(self) -> None:
        self.finished: list[Finish] = []
        self.intervals: list[tuple[str, float]] = []
        self.engine_steps: list[EngineStep] = []
        self.acceptance: list[AcceptanceCount] = []
        self.context_tokens = 0  # that are held when it is reported
        self.found: list[tuple[int, int]] = []  # requests admitted, and their tokens in the prefix cache
        self.resting = False  # whether nothing is left to do for now


class Worker:
    """One policy of one worker: a scheduler and an engine on the policy's clock."""

    def __init__(
        self,
        scheduler: RecordedWorker,
        engine: Engine,
        clock: Callable[[], float],
        report: Callable[[Log], None],
    ) -> None:
        """`clock` gives the policy's seconds; `report` takes the log after intervals that finished requests.

        `keep`, if set, takes each finished request with its tokens. `answer` takes what is said to orders,
        and `reload` loads weights into the engine, which is empty unless caches are kept.
        """
        self.index = scheduler.worker
        self.scheduler = scheduler
        self.engine = engine
        self.clock = clock
        self.report = report
        self.keep: Callable[[EngineRequest, tuple[int, ...]], None] = lambda _request, _tokens: None
        self.answer: Callable[[Answer], None] = lambda _answer: None
        self.reload: Callable[[Reload], None] = lambda _order: None
        self.watched = False
        self.stays_open = False  # whether a rollout waits for further requests until it is abandoned
        self.drafter_version = 0 if engine.max_k else NO_DRAFTER
        self.log = Log()
        self._off_cause = "decode_off" if engine.max_k else "decode"
        self._held: EngineStepFacts | None = None
        self._orders: Orders = lambda _wait: ()
        self._abandoned = False
        self._unseen: set[int] = set()  # requests that no engine step has prefilled yet
        self._inbox: deque[Work | Cut] = deque()  # from the first that cuts on
        self._prompt_tokens_left = 0
        self._joined = False  # whether requests were prefilled since the scheduler last heard of a batch
        # Requests that finished since the last decision interval was told, each once: a session may end two
        # short turns in it.
        self._ended: dict[int, None] = {}
        self._asked: dict[int, EngineRequest] = {}
        self._responses: dict[int, tuple[int, ...]] = {}
        self._counts = RequestCounts()
        self._started_s = self._now_s = self._before_s = 0.0  # last step: begin, end; end of the one before

    def rollout(
        self,
        step: int,
        requests: Sequence[EngineRequest],
        orders: Orders = lambda _wait: (),
    ) -> Log:
        """Generate all requests, and do what `orders` returns on the way; returns what is not reported yet.

        No rollout finds in a cache what an earlier one left there, of this policy or of another in turn: in
        training the weights have changed in between.

        `orders(True)` waits for one order or more.

        Raises RuntimeError if a forced response has another length than was asked for.
        """
        self._orders = orders
        self._prompt_tokens_left, self._joined = 0, False
        self._ended.clear()
        self._unseen.clear()
        self._abandoned = False
        self.engine.drop_caches()
        self._now_s = self._before_s = self.clock()
        self.scheduler.handle(RolloutBegan(self._now_s, self.index, step, self.drafter_version))
        self._submit(requests)
        drafts: Drafts = ()
        while True:
            drafts = self._obey(drafts) or drafts
            drafts = self._admit(drafts) or drafts
            if not self._busy():
                if self._abandoned or not self.stays_open:
                    break
                drafts = ()
                self._rest()
                continue
            if not drafts or self._inbox:
                continue  # the batch is not whole
            (draft,) = drafts
            drafts = self._observe(self._run(draft), drafts)
        self.scheduler.handle(RolloutEnded(self._now_s, self.index))
        return self._take_log()

    def _admit(self, drafts: Drafts) -> Drafts:
        """Run the engine steps that prefill; returns the decision for the batch that this forms, if any."""
        k = drafts[0].draft_config.depth if drafts else 0
        while self._held or (self._may_admit(bool(drafts) or self._joined) and not self._must_stop()):
            facts = self._engine_step(k)
            if not facts.prompt_tokens:
                self._held = facts
                break
            self._prompt_tokens_left -= facts.prompt_tokens
            self._book("prefill", facts, k)
            self._joined = True
        if (drafts and not self._joined) or not self._busy() or (self._inbox and not self._held):
            return ()
        held, self._joined = self._held, False
        requests, context = (held.batch, held.context_tokens) if held else self.engine.running()
        return self.scheduler.handle(BatchFormed(self._ended_s(), self.index, requests, context))

    def _may_admit(self, formed: bool) -> bool:
        """Return whether the next engine step may prefill: prompts are left, or no batch was `formed` yet."""
        return self.engine.pending() > 0 and (self._prompt_tokens_left > 0 or not formed)

    def _rest(self) -> None:
        """Wait for orders with nothing to do, which is told: silence is no sign of death then."""
        self.log.resting = True
        self.report(self._take_log())
        self._inbox.extend(self._orders(True))
        if isinstance(self._inbox[0], Work):
            self._now_s = self.clock()
            self.log.intervals.append(("tail_idle", self._now_s))

    def _must_stop(self) -> bool:
        """Take further requests in; returns whether an order waits that cuts the decision interval."""
        self._inbox.extend(self._orders(False))
        while self._inbox and isinstance(self._inbox[0], Work):
            self._take(self._inbox.popleft())
        return bool(self._inbox)

    def _obey(self, drafts: Drafts) -> Drafts:
        """Carry out the orders that wait; returns the decision for a batch that shrank."""
        if self._held is not None or not self._inbox:
            return ()
        batch = self.engine.running()[0]
        while self._inbox:
            self._take(self._inbox.popleft())
        requests, context = self.engine.running()
        if not drafts or not 0 < requests < batch:
            return ()
        return self.scheduler.handle(BatchFormed(self._now_s, self.index, requests, context))

    def _take(self, order: Work | Cut) -> None:
        match order:
            case Work():
                self._submit(order.requests)
            case Withdraw():
                self._tell()
                tokens = self._withdraw(order.requests)
                self.answer(Withdrawn(self.clock(), tuple(tokens), tuple(tokens.values())))
            case Reload():
                self._load(order)
                self.answer(Reloaded(self.clock()))
            case Abandon():
                self._abandoned = True
                self.engine.abort_all()
                self._asked.clear()

    def _withdraw(self, requests: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Take requests out of the engine; returns the tokens that the response of each has so far."""
        emitted = self.engine.withdraw(requests)
        taken = {request: self._asked.pop(request) for request in emitted}
        waiting = [each for request, each in taken.items() if not emitted[request]]
        self._prompt_tokens_left = max(
            0, self._prompt_tokens_left - sum(len(each.context) for each in waiting)
        )
        return {request: each.resumed + emitted[request] for request, each in taken.items()}

    def _load(self, order: Reload) -> None:
        """Load weights between two engine steps; what was being generated goes on behind what it has."""
        self._tell()
        asked = [] if order.kv_kept else list(self._asked.values())
        tokens = self._withdraw([each.id for each in asked])
        self.reload(order)
        self._now_s = self.clock()
        self.log.intervals.append(("weight_sync", self._now_s))
        self._submit([msgspec.structs.replace(each, resumed=tokens[each.id]) for each in asked])

    def _run(self, draft: SetDraftConfig) -> DecisionInterval:
        """Run one decision interval; an engine step that admits requests ends it before that engine step."""
        interval = DecisionInterval(draft.draft_config, self.scheduler.wants_requests)
        k = draft.draft_config.depth
        cause = "speculate" if k else self._off_cause
        while self._busy() and (self._held is not None or not self._must_stop()):
            facts = self._engine_step(k)
            if facts.prompt_tokens:
                self._held = facts
                break
            interval.add(facts, self.engine.pending())
            self._book(cause, facts, k)
            if interval.engine_steps == draft.max_engine_steps or interval.requests < draft.min_requests:
                break
        return interval

    def _observe(self, interval: DecisionInterval, drafts: Drafts) -> Drafts:
        """Tell the scheduler what the interval did; one of no engine steps leaves its decision open."""
        if not interval.engine_steps:
            return drafts
        held, finished = self._held, tuple(self._ended)
        self._ended.clear()
        requests, context = (interval.requests, held.context_tokens) if held else self.engine.running()
        event = DecisionEnded(
            self._ended_s(),
            self.index,
            interval.draft_config,
            interval.engine_steps,
            interval.request_steps,
            interval.decode_s,
            tuple(interval.accepted_by_position),
            finished,
            requests,
            context,
            interval.by_request({*self._asked, *finished}),  # not who is counted once more when done
        )
        drafts = self.scheduler.handle(event)
        self._tell()
        return drafts

    def _tell(self) -> None:
        """Report what has finished, if anything has."""
        if self.log.finished:
            self.report(self._take_log())

    def _engine_step(self, k: int) -> EngineStepFacts:
        """Return the facts of the engine step that is held, or run one."""
        if self._held is not None:
            facts, self._held = self._held, None
            return facts
        self._before_s, self._started_s = self._now_s, self.clock()
        facts = self.engine.step(k)
        self._now_s = self.clock()
        return facts

    def _submit(self, requests: Sequence[EngineRequest]) -> None:
        if requests:
            self._asked.update((request.id, request) for request in requests)
            self._unseen.update(request.id for request in requests)
            self._prompt_tokens_left += sum(len(request.context) for request in requests)
            self.engine.submit(requests)

    def _busy(self) -> bool:
        return self._held is not None or self.engine.pending() > 0

    def _ended_s(self) -> float:
        """Return when the last engine step ended that is not held."""
        return self._before_s if self._held else self._now_s

    def _book(self, cause: str, facts: EngineStepFacts, k: int) -> None:
        """Write down one engine step, the last that was run, and what it finished."""
        intervals = self.log.intervals
        if intervals and intervals[-1][0] == cause:
            intervals[-1] = (cause, self._now_s)
        else:
            intervals.append((cause, self._now_s))
        self.log.engine_steps.append(
            EngineStep(
                self._started_s,
                facts.seconds,
                facts.batch,
                facts.context_tokens,
                facts.prompt_tokens,
                k,
                facts.drafted_tokens,
                sum(facts.accepted_by_position),
                facts.compiled,
                facts.preempted,
            )
        )
        self._counts.add(facts.drafts)
        for prompt in facts.prompts:
            if prompt.request in self._unseen:
                self._unseen.discard(prompt.request)
                self.log.found.append((prompt.request, prompt.cached_tokens))
        self._ended.update(dict.fromkeys(facts.finished))
        self.log.finished += [Finish(request, 0, self._now_s) for request in facts.finished]
        if self.watched:
            self._tell()

    def _take_log(self) -> Log:
        """Return the log with the lengths of its responses, and begin a new one."""
        log, self.log = self.log, Log()
        self._responses.update(self.engine.responses())
        for row, finish in enumerate(log.finished):
            asked, response = self._asked.pop(finish.request), self._responses.pop(finish.request)
            tokens = len(asked.resumed) + len(response)
            if asked.forced and tokens != asked.response_tokens:
                raise RuntimeError(
                    f"request {finish.request} was to have {asked.response_tokens} tokens and has {tokens}"
                )
            self.keep(asked, response)
            told = asked.resumed + response if asked.told else ()
            log.finished[row] = Finish(finish.request, tokens, finish.finish_s, told)
        log.acceptance = self._counts.take(self._asked)
        log.context_tokens = self.engine.running()[1]
        return log
