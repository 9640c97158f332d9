"""Times engine steps of a live engine: one batch that stays whole, under one chain length after the other."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Literal

import msgspec

from tlt.plugin.engine_step import EngineStepFacts
from tlt.realrun.calibrate.measurement_plan import (
    ARRIVAL_ENGINE_STEPS,
    SMALLEST_CHUNK_TOKENS,
    Arrival,
    Cell,
    Plan,
)
from tlt.realrun.engine.protocol import Engine, EngineRequest

# Token ids of made-up prompts: few enough for any vocabulary, and no special tokens of the usual ones.
TOKEN_IDS = range(20, 250)
PATIENCE_ENGINE_STEPS = 4  # without prefill, until a batch that is not whole is taken for stuck
UNBOUNDED = 1 << 60  # tokens of a KV cache whose size the engine does not tell

EngineKind = Literal["plain", "speculating"]


class Block(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="block"):
    """One repeat of one point. `engine_steps` were timed; `seconds` and `context_tokens` are their means."""

    engine: EngineKind
    cell: Cell
    k: int
    repeat: int
    before_k: int
    settle_s: tuple[float, ...]  # engine steps from the first that was planned with `k` until they are steady
    seconds: float
    context_tokens: float  # of one request
    engine_steps: int
    compiled: int  # engine steps dropped since something was compiled in them


class PrefillBlock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="prefill"):
    """One repeat of one prefill: all prompts of the cell, from their submission to the last first token."""

    cell: Cell
    repeat: int
    seconds: float
    compiled: int


class MixedBlock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="mixed"):
    """One repeat of one arrival: the decode step before it, and with what the arrival took on top."""

    engine: EngineKind
    arrival: Arrival
    k: int
    repeat: int
    decode_s: float
    seconds: float
    context_tokens: float  # of one request that decodes
    compiled: int


class BatchNotWholeError(Exception):
    """A step of the engine does not take the whole batch: its KV cache or token budget is too small."""


class Bench:
    """Runs blocks on one engine."""

    def __init__(self, engine: Engine, kind: EngineKind, plan: Plan, rng: random.Random) -> None:
        self.engine = engine
        self.kind = kind
        self.plan = plan
        self.rng = rng
        self._ids = count()
        self._chunk_tokens = int(getattr(engine, "chunk_tokens", SMALLEST_CHUNK_TOKENS))
        self._kv_tokens = int(getattr(engine, "kv_tokens", UNBOUNDED))
        self._late = getattr(engine, "lag_engine_steps", 1) - 1  # steps by which facts come late

    def time_prefill(self, cell: Cell, repeat: int) -> PrefillBlock:
        """Prefill the prompts of `cell` in an empty engine."""
        self._submit(cell, 1)
        facts: list[EngineStepFacts] = []
        while self.engine.pending():
            facts.append(self.engine.step(0))
        self.engine.responses()
        return PrefillBlock(
            cell=cell,
            repeat=repeat,
            seconds=sum(fact.seconds for fact in facts),
            compiled=sum(fact.compiled for fact in facts),
        )

    def time_engine_steps(self, cell: Cell, turns: Sequence[tuple[int, int]]) -> Iterator[Block]:
        """Time the (repeat, k) of `turns` in their order; the batch is submitted anew if it gets too long.

        Raises BatchNotWholeError.
        """
        left = list(turns)
        while left:
            filling = 1 + cell.fill_engine_steps(self._chunk_tokens)
            most = min(self.plan.max_context_tokens, self._kv_tokens // cell.batch) - cell.prompt_tokens
            wanted = filling + sum(self.plan.growth_tokens(k) for _, k in left)
            response_tokens = min(most, wanted)
            if response_tokens < filling + self.plan.growth_tokens(left[0][1]):
                raise BatchNotWholeError
            try:
                self._submit(cell, response_tokens)
                emitted, before_k = self._fill(cell), 0
                while left and emitted + self.plan.growth_tokens(left[0][1]) < response_tokens:
                    repeat, k = left.pop(0)
                    yield self._block(cell, repeat, k, before_k)
                    emitted, before_k = emitted + self.plan.growth_tokens(k), k
            finally:
                self.engine.abort_all()
                self.engine.responses()

    def time_arrivals(self, cell: Cell, turns: Sequence[tuple[int, int, int]]) -> Iterator[MixedBlock]:
        """Time the (repeat, k, arriving tokens) of `turns` against the batch of `cell`.

        Raises BatchNotWholeError.
        """
        left = list(turns)
        while left:
            filling = 1 + cell.fill_engine_steps(self._chunk_tokens)
            room = self._kv_tokens // cell.batch - max(tokens for _, _, tokens in left) // cell.batch - 1
            most = min(self.plan.max_context_tokens, room) - cell.prompt_tokens
            wanted = filling + sum(self.plan.arrival_growth_tokens(k) for _, k, _ in left)
            response_tokens = min(most, wanted)
            if response_tokens < filling + self.plan.arrival_growth_tokens(left[0][1]):
                raise BatchNotWholeError
            try:
                self._submit(cell, response_tokens)
                emitted = self._fill(cell)
                while left and emitted + self.plan.arrival_growth_tokens(left[0][1]) < response_tokens:
                    repeat, k, tokens = left.pop(0)
                    yield self._arrival(Arrival(cell, tokens), repeat, k)
                    emitted += self.plan.arrival_growth_tokens(k)
            finally:
                self.engine.abort_all()
                self.engine.responses()

    def _arrival(self, arrival: Arrival, repeat: int, k: int) -> MixedBlock:
        """Decode steadily, let one prompt in, and decode until its engine step has passed."""
        for _ in range(self.plan.settle_engine_steps):
            self.engine.step(k)
        before = [self.engine.step(k) for _ in range(self.plan.engine_steps)]
        decode_s = sum(fact.seconds for fact in before) / len(before)
        self._submit(Cell(1, arrival.prompt_tokens), 1)
        around: list[EngineStepFacts] = []
        while sum(fact.prompt_tokens for fact in around) < arrival.prompt_tokens:
            if len(around) == ARRIVAL_ENGINE_STEPS:
                raise BatchNotWholeError
            around.append(self.engine.step(k))
        around += [self.engine.step(k) for _ in range(self.plan.settle_engine_steps)]
        if any(fact.batch < arrival.cell.batch for fact in (*before, *around)):
            raise BatchNotWholeError
        extra_s = sum(fact.seconds for fact in around) - len(around) * decode_s
        return MixedBlock(
            engine=self.kind,
            arrival=arrival,
            k=k,
            repeat=repeat,
            decode_s=decode_s,
            seconds=decode_s + extra_s,
            context_tokens=before[-1].context_tokens / arrival.cell.batch,
            compiled=sum(fact.compiled for fact in (*before, *around)),
        )

    def _submit(self, cell: Cell, response_tokens: int) -> None:
        self.engine.submit(
            [
                EngineRequest(
                    next(self._ids),
                    tuple(self.rng.choices(TOKEN_IDS, k=cell.prompt_tokens)),
                    response_tokens,
                )
                for _ in range(cell.batch)
            ]
        )

    def _fill(self, cell: Cell) -> int:
        """Prefill until all requests decode; returns how many engine steps that took."""
        stuck = 0
        for engine_step in count(1):
            facts = self.engine.step(0)
            if facts.prompt_tokens == 0 and facts.batch == cell.batch:
                return engine_step
            stuck = 0 if facts.prompt_tokens else stuck + 1
            if stuck == PATIENCE_ENGINE_STEPS or engine_step == cell.fill_engine_steps(self._chunk_tokens):
                break
        raise BatchNotWholeError

    def _block(self, cell: Cell, repeat: int, k: int, before_k: int) -> Block:
        settle = [self.engine.step(k) for _ in range(self.plan.settle_engine_steps)]
        timed = [self.engine.step(k) for _ in range(self.plan.engine_steps)]
        if any(fact.batch != cell.batch for fact in timed):
            raise BatchNotWholeError
        kept = [fact for fact in timed if not fact.compiled]
        engine_steps, disturbed = len(kept), any(fact.compiled for fact in settle)
        return Block(
            engine=self.kind,
            cell=cell,
            k=k,
            repeat=repeat,
            before_k=before_k,
            settle_s=() if disturbed else tuple(fact.seconds for fact in settle[self._late :]),
            seconds=sum(fact.seconds for fact in kept) / engine_steps if engine_steps else 0.0,
            context_tokens=sum(fact.context_tokens for fact in kept) / cell.batch / engine_steps
            if engine_steps
            else 0.0,
            engine_steps=engine_steps,
            compiled=len(timed) - engine_steps + sum(fact.compiled for fact in settle),
        )
