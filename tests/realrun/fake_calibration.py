"""An engine that obeys a known cost law with a little seeded noise: what calibrating must find again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from tlt.plugin.engine_step import EngineStepFacts
from tlt.realrun.config import RealConfig
from tlt.realrun.engine.protocol import EngineRequest

FLOOR_S = 0.006
TOKEN_S = 2e-5
KV_S = 2e-8
OFF_S = 0.0005
DRAFT_S = 0.0002
PASS_S = 0.0004
PASS_REQUEST_S = 3e-6
PREFILL_S = 3e-5
NOISE = 0.004
SWITCH_S = 0.002  # once, in the first engine step after K changed
SURVIVAL = (0.8, 0.6, 0.5, 0.4)
LAYERS = 30


class Running(msgspec.Struct):
    """A request in the batch."""

    request: EngineRequest
    emitted: int = 0


class FakeEngine:
    """Deterministic; `kv_tokens` bounds what is admitted."""

    starts: ClassVar[list[bool]] = []  # `speculating` of every engine started
    kv_tokens = 1_000_000
    fail_after_engine_steps: int | None = None  # KeyboardInterrupt after so many more engine steps
    compile_at_engine_step: int | None = None
    chunk_tokens = 4096

    def __init__(self, config: RealConfig, speculating: bool) -> None:
        self.max_k = max(config.drafter.ks) if speculating else 0
        self.speculating = speculating
        self.graph_tokens = 512.0 if speculating else 128.0
        self.max_running = config.engine.max_running
        self.rng = random.Random(f"{config.seed}/{speculating}")  # noqa: S311
        self.waiting: list[EngineRequest] = []
        self.batch: list[Running] = []
        self.done: dict[int, tuple[int, ...]] = {}
        self.drafted_k = self.asked_k = 0
        self.engine_steps = 0
        self.closed = False
        type(self).starts.append(speculating)

    def warm_up(self, batches: Sequence[int], ks: Sequence[int]) -> None:
        self.warmed = (tuple(batches), tuple(ks))

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        self.waiting += requests

    def _admit(self) -> int:
        held = sum(len(r.request.prompt_token_ids) + r.emitted for r in self.batch)
        tokens = 0
        while self.waiting:
            prompt = len(self.waiting[0].prompt_token_ids)
            full = len(self.batch) >= self.max_running
            if full or (tokens and tokens + prompt > self.chunk_tokens) or held + prompt > self.kv_tokens:
                break
            self.batch.append(Running(self.waiting.pop(0), 1))
            tokens, held = tokens + prompt, held + prompt
        return tokens

    def _engine_step_s(self, batch: int, context: int, k: int) -> float:
        seconds = FLOOR_S + TOKEN_S * batch * (k + 1)
        passes = k if k else int(self.speculating)
        seconds += KV_S * context * (1 + passes / LAYERS)
        if k:
            seconds += DRAFT_S + k * (PASS_S + PASS_REQUEST_S * batch)
        elif self.speculating:
            seconds += OFF_S
        return seconds * (1 + NOISE * self.rng.gauss(0, 1))

    def step(self, k: int) -> EngineStepFacts:
        assert k <= self.max_k
        assert self.pending()
        cls = type(self)
        if cls.fail_after_engine_steps is not None:
            cls.fail_after_engine_steps -= 1
            if cls.fail_after_engine_steps < 0:
                raise KeyboardInterrupt
        before = list(self.batch)
        context = sum(len(r.request.prompt_token_ids) + r.emitted for r in before)
        accepted = [0] * k
        for running in before:
            draw = self.rng.random()
            count = sum(draw < survival for survival in SURVIVAL[:k])
            for position in range(count):
                accepted[position] += 1
            running.emitted += 1 + count
        prompt_tokens = self._admit()
        seconds = self._engine_step_s(len(before), context, k) if before else 0.0
        seconds += PREFILL_S * prompt_tokens + (FLOOR_S if prompt_tokens and not before else 0.0)
        if k != self.asked_k:
            seconds += SWITCH_S
        self.asked_k = k
        self.engine_steps += 1
        compiled = cls.compile_at_engine_step == self.engine_steps
        finished = [r for r in self.batch if r.emitted >= r.request.response_tokens]
        self.batch = [r for r in self.batch if r.emitted < r.request.response_tokens]
        for running in finished:
            self.done[running.request.id] = (1,) * running.request.response_tokens
        return EngineStepFacts(
            seconds=seconds + (5.0 if compiled else 0.0),
            batch=len(before),
            context_tokens=context,
            prompt_tokens=prompt_tokens,
            drafted_tokens=len(before) * k,
            accepted_by_position=tuple(accepted),
            finished=tuple(r.request.id for r in finished),
            compiled=compiled,
        )

    def running(self) -> tuple[int, int]:
        return len(self.batch), sum(len(r.request.prompt_token_ids) + r.emitted for r in self.batch)

    def pending(self) -> int:
        return len(self.waiting) + len(self.batch)

    def responses(self) -> dict[int, tuple[int, ...]]:
        done, self.done = self.done, {}
        return done

    def drop_caches(self) -> None:
        assert not self.pending()

    def abort_all(self) -> None:
        self.waiting, self.batch = [], []
        self.asked_k = 0

    def close(self) -> None:
        self.closed = True


def make_engine(config: RealConfig, speculating: bool) -> FakeEngine:
    return FakeEngine(config, speculating)
