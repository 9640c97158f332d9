"""The live worker: one engine under its scheduler; reads schedule -> run -> observe, as the simulated one.

An engine says only afterwards what a cycle did. So the cycle that turns out to admit requests is held: the
epoch ends before it, and prefill begins with it. A cycle without a prompt that ends a prefill is held, too,
and becomes the first of the epoch that follows.

Drafts are verified one cycle after they were made, or two where the engine plans ahead. So the first cycle or
two of an epoch verify what the arm before it drafted; an arm that goes on has no such edge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tlt.realrun.engine.protocol import CycleFacts, Engine, EngineRequest
from tlt.realrun.messages import Cycle, Finish
from tltsched.commands import Draft
from tltsched.draft_config import Arm
from tltsched.event_log import RecordedWorker
from tltsched.events import BatchFormed, EpochEnded, RolloutBegan, RolloutEnded
from tltsched.worker import NO_DRAFTER

Drafts = tuple[Draft, ...]


class Epoch:
    """What one decision epoch adds up to: pure decode cycles under one arm."""

    def __init__(self, arm: Arm) -> None:
        self.arm = arm
        self.cycles = 0
        self.request_cycles = 0
        self.decode_s = 0.0
        self.accepted_by_position: list[int] = []
        self.requests = 0  # left after the last cycle

    def add(self, facts: CycleFacts, pending: int) -> None:
        """Count one cycle; `pending` requests are not finished after it, waiting ones included."""
        self.cycles += 1
        self.request_cycles += facts.batch
        self.decode_s += facts.seconds
        # An engine that plans ahead counts a request once more right after it has finished.
        self.requests = min(facts.batch - len(facts.finished), pending)
        accepted = facts.accepted_by_position
        self.accepted_by_position += [0] * (len(accepted) - len(self.accepted_by_position))
        for position, count in enumerate(accepted):
            self.accepted_by_position[position] += count


class Log:
    """What a worker has to report: finished responses, stretches of time, cycles."""

    def __init__(self) -> None:
        self.finished: list[Finish] = []
        self.spans: list[tuple[str, float]] = []
        self.cycles: list[Cycle] = []


class Worker:
    """One arm of one worker: a scheduler and an engine on the arm's clock."""

    def __init__(
        self,
        scheduler: RecordedWorker,
        engine: Engine,
        clock: Callable[[], float],
        report: Callable[[Log], None],
    ) -> None:
        """`clock` gives the arm's seconds; `report` takes the log after each epoch that finished requests.

        `keep`, if set, takes each finished request with its tokens.
        """
        self.index = scheduler.scheduler.worker
        self.scheduler = scheduler
        self.engine = engine
        self.clock = clock
        self.report = report
        self.keep: Callable[[EngineRequest, tuple[int, ...]], None] = lambda _request, _tokens: None
        self.drafter_version = 0 if engine.max_k else NO_DRAFTER
        self.log = Log()
        self._off_cause = "decode_off" if engine.max_k else "decode"
        self._held: CycleFacts | None = None

    def rollout(
        self,
        step: int,
        requests: Sequence[EngineRequest],
        more: Callable[[], Sequence[EngineRequest]] = lambda: (),
    ) -> Log:
        """Generate all requests, and those that `more` returns on the way; returns what is not reported yet.

        Raises RuntimeError if a forced response has another length than was asked for.
        """
        self._more = more
        self._prompt_tokens_left = 0
        self._asked: dict[int, EngineRequest] = {}
        self._responses: dict[int, tuple[int, ...]] = {}
        self._now_s = self._before_s = self.clock()
        self.scheduler.handle(RolloutBegan(self._now_s, self.index, step, self.drafter_version))
        self._submit(requests)
        drafts: Drafts = ()
        while True:
            drafts = self._admit(drafts) or drafts
            if not self._busy():
                break
            (draft,) = drafts
            epoch = self._run(draft)
            drafts = self._observe(epoch, drafts)
        self.scheduler.handle(RolloutEnded(self._now_s, self.index))
        return self._take_log()

    def _admit(self, drafts: Drafts) -> Drafts:
        """Run the cycles that prefill; returns the decision for the batch that this forms, if any."""
        prefilled, k = False, drafts[0].arm.depth if drafts else 0
        while self._held or (self.engine.pending() and self._may_admit(bool(drafts) or prefilled)):
            facts = self._cycle(k)
            if not facts.prompt_tokens:
                self._held = facts
                break
            self._prompt_tokens_left -= facts.prompt_tokens
            self._book("prefill", facts, k)
            prefilled = True
        if (drafts and not prefilled) or not self._busy():
            return ()
        held = self._held
        requests, context = (held.batch, held.context_tokens) if held else self.engine.running()
        return self.scheduler.handle(BatchFormed(self._ended_s(), self.index, requests, context))

    def _may_admit(self, formed: bool) -> bool:
        """Return whether the next cycle may prefill: prompts are left, or no batch was `formed` yet."""
        return self._prompt_tokens_left > 0 or not formed

    def _run(self, draft: Draft) -> Epoch:
        """Run one epoch; a cycle that admits requests ends it before that cycle."""
        epoch, k = Epoch(draft.arm), draft.arm.depth
        cause = "speculate" if k else self._off_cause
        while self._busy():
            facts = self._cycle(k)
            if facts.prompt_tokens:
                self._held = facts
                break
            epoch.add(facts, self.engine.pending())
            self._book(cause, facts, k)
            if epoch.cycles == draft.max_cycles or epoch.requests < draft.min_requests:
                break
        return epoch

    def _observe(self, epoch: Epoch, drafts: Drafts) -> Drafts:
        """Tell the scheduler what the epoch did; an epoch of no cycles leaves its Draft open."""
        if not epoch.cycles:
            return drafts
        held, finished = self._held, tuple(finish.request for finish in self.log.finished)
        requests, context = (epoch.requests, held.context_tokens) if held else self.engine.running()
        event = EpochEnded(
            self._ended_s(),
            self.index,
            epoch.arm,
            epoch.cycles,
            epoch.request_cycles,
            epoch.decode_s,
            tuple(epoch.accepted_by_position),
            finished,
            requests,
            context,
        )
        drafts = self.scheduler.handle(event)
        if finished:
            self.report(self._take_log())
        return drafts

    def _cycle(self, k: int) -> CycleFacts:
        """Return the facts of the cycle that is held, or run one."""
        if self._held is not None:
            facts, self._held = self._held, None
            return facts
        self._submit(self._more())
        self._before_s, self._started_s = self._now_s, self.clock()
        facts = self.engine.step(k)
        self._now_s = self.clock()
        return facts

    def _submit(self, requests: Sequence[EngineRequest]) -> None:
        if requests:
            self._asked.update((request.id, request) for request in requests)
            self._prompt_tokens_left += sum(len(request.prompt_token_ids) for request in requests)
            self.engine.submit(requests)

    def _busy(self) -> bool:
        return self._held is not None or self.engine.pending() > 0

    def _ended_s(self) -> float:
        """Return when the last cycle ended that is not held."""
        return self._before_s if self._held else self._now_s

    def _book(self, cause: str, facts: CycleFacts, k: int) -> None:
        """Write down one cycle, the last that was run, and what it finished."""
        spans = self.log.spans
        if spans and spans[-1][0] == cause:
            spans[-1] = (cause, self._now_s)
        else:
            spans.append((cause, self._now_s))
        self.log.cycles.append(
            Cycle(
                self._started_s,
                facts.seconds,
                facts.batch,
                facts.context_tokens,
                facts.prompt_tokens,
                k,
                facts.drafted_tokens,
                sum(facts.accepted_by_position),
                facts.compiled,
            )
        )
        self.log.finished += [Finish(request, 0, self._now_s) for request in facts.finished]

    def _take_log(self) -> Log:
        """Return the log with the lengths of its responses, and begin a new one."""
        log, self.log = self.log, Log()
        self._responses.update(self.engine.responses())
        for row, finish in enumerate(log.finished):
            asked, response = self._asked.pop(finish.request), self._responses.pop(finish.request)
            tokens = len(response)
            if asked.forced and tokens != asked.response_tokens:
                raise RuntimeError(
                    f"request {finish.request} was to have {asked.response_tokens} tokens and has {tokens}"
                )
            self.keep(asked, response)
            log.finished[row] = Finish(finish.request, tokens, finish.finish_s)
        return log
