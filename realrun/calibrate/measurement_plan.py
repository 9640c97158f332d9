"""What a calibration measures: which batches, contexts and chain lengths, how often, and in which order.

The shortest context is swept over every batch size. At longer ones every second batch is left out, from the
largest that fits the token limit downwards: prefill is what takes the time there, and the law is linear in
the context. A fourth of the points, none at the ends of the batch range, is held out from the fit.
"""

from __future__ import annotations

from math import ceil

import msgspec

from tlt.realrun.config import RealConfig
from tlt.realrun.engine.vllm_settings import CHUNK_TOKENS
from tltsched.errors import InputError

CONTEXTS = {"cpu": (32, 128, 384), "cuda": (256, 2048, 8192)}
MOST_TOKENS = {"cpu": 8192, "cuda": 262_144}
ENGINE_STEPS = {"cpu": 4, "cuda": 8}
# Steps after a change of K whose facts are not steady: drafts made in one engine step are verified in the
# next, and an engine on a GPU plans one engine step ahead.
SETTLE_ENGINE_STEPS = {"cpu": 2, "cuda": 3}
TIME_LIMIT_S = {"cpu": 900.0, "cuda": 240.0}
SMALLEST_CHUNK_TOKENS = 512  # that an engine prefills in one engine step, where it does not tell
FILL_ENGINE_STEPS = 16  # beside those that prefill
ARRIVAL_ENGINE_STEPS = 8  # within which an arriving prompt has to be prefilled
PREFILL_TOKENS = {"cpu": 1024, "cuda": 32_768}  # largest prefill that is timed
ARRIVING_TOKENS = {"cpu": (16, 64, 256), "cuda": (16, 256, 1024, 4096)}  # prompts that join a batch
MIXED_REPEATS = 3  # at most: an arrival adds milliseconds, and its spread is small beside that


class Cell(msgspec.Struct, frozen=True, gc=False):
    """A batch of prompts of one length, on which every K is timed."""

    batch: int
    prompt_tokens: int

    def tokens(self) -> int:
        """Return the prompt tokens of the batch."""
        return self.batch * self.prompt_tokens

    def fill_engine_steps(self, chunk_tokens: int) -> int:
        """Return within how many engine steps all prompts are prefilled; early ones emit tokens meanwhile."""
        return FILL_ENGINE_STEPS + ceil(self.tokens() / chunk_tokens)


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """A prompt of `prompt_tokens` that is prefilled while the batch of `cell` decodes."""

    cell: Cell
    prompt_tokens: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The sweep of one configuration."""

    batches: tuple[int, ...]
    contexts_tokens: tuple[int, ...]
    ks: tuple[int, ...]  # of the speculating engine, ascending
    cells: tuple[Cell, ...]
    prefills: tuple[Cell, ...]
    arrivals: tuple[Arrival, ...]
    mixed_ks: tuple[int, ...]  # under which arrivals are timed: none, a middle one, the longest
    repeats: int
    visits: int
    engine_steps: int
    settle_engine_steps: int
    max_context_tokens: int
    time_limit_s: float

    def growth_tokens(self, k: int) -> int:
        """Return how many tokens one request can emit while a repeat with `k` is timed."""
        return (self.engine_steps + self.settle_engine_steps) * (k + 1)

    def arrival_growth_tokens(self, k: int) -> int:
        """Return how many tokens one request can emit at most while an arrival is timed with `k`."""
        engine_steps = self.engine_steps + 2 * self.settle_engine_steps + ARRIVAL_ENGINE_STEPS
        return engine_steps * (k + 1)

    def mixed_held_out(self, arrival: Arrival, k: int) -> bool:
        """Return whether a mixed point is for judging the fit: about a third, in a checkerboard pattern."""
        tokens = sorted({each.prompt_tokens for each in self.arrivals})
        batches = sorted({each.cell.batch for each in self.arrivals})
        place = tokens.index(arrival.prompt_tokens) + batches.index(arrival.cell.batch)
        return (place + self.mixed_ks.index(k)) % 3 == 1 and len(self.arrivals) > 1

    def repeats_of(self, visit: int) -> range:
        """Return the repeats that are made in a visit; they are spread evenly over the visits."""
        first, last = (self.repeats * edge // self.visits for edge in (visit, visit + 1))
        return range(first, last)

    def held_out(self, cell: Cell, k: int) -> bool:
        """Return whether the point is for judging the fit: about a fourth, in a checkerboard pattern."""
        row, last = self.batches.index(cell.batch), len(self.batches) - 1
        if row in (0, last):
            return False
        column = self.contexts_tokens.index(cell.prompt_tokens)
        return (row + 2 * column + (self.ks.index(k) if k in self.ks else 0)) % 3 == 1


def make_plan(config: RealConfig) -> Plan:
    """Return the sweep; raises InputError where the configuration leaves nothing to measure."""
    sweep, device, limit = config.calibration, config.engine.device, config.engine
    ks = tuple(sorted({0, *config.drafter.ks}))
    engine_steps = sweep.engine_steps_per_repeat or ENGINE_STEPS[device]
    settle = SETTLE_ENGINE_STEPS[device]
    batches = tuple(sorted(set(sweep.batches))) or _powers(limit.max_running)
    if batches[-1] > limit.max_running:
        raise InputError(
            "calibration.batches",
            batches[-1],
            f"at most engine.max_running = {limit.max_running}",
            "lower it",
        )
    most = sweep.most_tokens or MOST_TOKENS[device]
    chunk = CHUNK_TOKENS[device]
    longest_repeat = Cell(1, most).fill_engine_steps(chunk) + (engine_steps + settle) * (ks[-1] + 1)
    contexts = _contexts(
        sweep.contexts_tokens or CONTEXTS[device], limit.max_context_tokens - longest_repeat - 1
    )
    cells = _cells(batches, contexts, most)
    return Plan(
        batches=batches,
        contexts_tokens=contexts,
        ks=ks,
        cells=cells,
        prefills=_prefills(batches, contexts, PREFILL_TOKENS[device]),
        arrivals=_arrivals(cells, ARRIVING_TOKENS[device], limit.max_context_tokens, limit.max_running),
        mixed_ks=tuple(sorted({0, ks[len(ks) // 2], ks[-1]})),
        repeats=sweep.repeats,
        visits=min(sweep.visits, sweep.repeats),
        engine_steps=engine_steps,
        settle_engine_steps=settle,
        max_context_tokens=limit.max_context_tokens,
        time_limit_s=sweep.time_limit_s or TIME_LIMIT_S[device],
    )


def _powers(most: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... and `most` itself."""
    powers = [1]
    while powers[-1] * 2 <= most:
        powers.append(powers[-1] * 2)
    return tuple(powers) if powers[-1] == most else (*powers, most)


def _contexts(wanted: tuple[int, ...], room: int) -> tuple[int, ...]:
    """Return the prompt lengths, cut to what leaves room for a repeat."""
    if room < 1:
        raise InputError(
            "engine.max_context_tokens", room, "room for one repeat with the longest chain", "raise it"
        )
    return tuple(sorted({min(tokens, room) for tokens in wanted}))


def _cells(batches: tuple[int, ...], contexts: tuple[int, ...], most_tokens: int) -> tuple[Cell, ...]:
    cells = []
    for column, context in enumerate(contexts):
        fitting = [batch for batch in batches if batch * context <= most_tokens]
        chosen = fitting if column == 0 else fitting[::-2][::-1]
        cells += [Cell(batch, context) for batch in chosen]
    if not cells:
        raise InputError(
            "calibration.most_tokens", most_tokens, f"{contexts[0]} or more: the shortest context", "raise it"
        )
    return tuple(cells)


def _arrivals(
    cells: tuple[Cell, ...], tokens: tuple[int, ...], most_tokens: int, max_running: int
) -> tuple[Arrival, ...]:
    """Return prompts of each length that fits, arriving at a batch of one, a middle and the largest one.

    The batches have the shortest context: what an arrival costs does not hang on theirs. A full engine takes
    no arrival.
    """
    shortest = [
        cell for cell in cells if cell.prompt_tokens == cells[0].prompt_tokens and cell.batch < max_running
    ]
    if not shortest:
        return ()
    chosen = dict.fromkeys((shortest[0], shortest[len(shortest) // 2], shortest[-1]))
    return tuple(Arrival(cell, count) for cell in chosen for count in tokens if count < most_tokens)


def _prefills(batches: tuple[int, ...], contexts: tuple[int, ...], most_tokens: int) -> tuple[Cell, ...]:
    """Return prompts alone at every length, and batches of the shorter ones."""
    chosen = {Cell(1, context) for context in contexts}
    for context in contexts[:2]:
        chosen |= {Cell(batch, context) for batch in batches[2::2]}
    fitting = [cell for cell in chosen if cell.tokens() <= most_tokens or cell == Cell(1, contexts[0])]
    return tuple(sorted(fitting, key=lambda cell: (cell.prompt_tokens, cell.batch)))
