"""Sessions drawn from laws.

Recorded, if the laws were fitted: the distribution of each quantity. Modelled: how the turns of a session,
and the sessions of a prompt group, resemble one another (Gaussian copulas), and that quantities are
independent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.common.seeds import SESSIONS, generator
from tlt.traces.lengths.generate import check_seed, check_sizes
from tlt.traces.lengths.schema import INT32_MAX, MOST_TURN_ROWS, Origin
from tlt.traces.sessions.build import fill_kept
from tlt.traces.sessions.laws import AnyLaw, Quantity
from tlt.traces.sessions.schema import Sessions
from tlt.traces.sessions.session_laws import SessionLaws
from tlt.traces.sessions.turns import LENGTH, MOST_TURNS, MOST_WAIT_S, STOP, TOOL, TURN_LIMIT
from tltsched.errors import InputError

ALMOST_ONE = np.nextafter(1.0, 0.0)


def generate_sessions(
    laws: SessionLaws, steps: int, prompts_per_step: int, samples_per_prompt: int, seed: int = 0
) -> Sessions:
    """Return steps x prompts x samples sessions, in that order, all there when their step begins.

    A session ends at `max_turns`, and where a response would pass a cap on the whole, which cuts it. Draws of
    step s depend on `seed`, s and the sizes of a step. Raises InputError for sizes out of range.
    """
    check_sizes(steps, prompts_per_step, samples_per_prompt)
    check_seed(seed)
    size = prompts_per_step * samples_per_prompt
    drawn = [_step(laws, seed, step, prompts_per_step, samples_per_prompt) for step in range(steps)]
    turns, wide_inputs, wide_responses, waits, ends = map(np.concatenate, zip(*drawn, strict=True))
    inputs, responses = wide_inputs.astype(np.int32), wide_responses.astype(np.int32)
    if len(inputs) > MOST_TURN_ROWS:
        raise InputError("turns", len(inputs), f"at most {MOST_TURN_ROWS:,}", "draw fewer sessions")
    offsets = np.concatenate([[0], np.cumsum(turns)]).astype(np.int64)
    count = steps * size
    return Sessions(
        origin=_origin(laws, seed),
        turn_offsets=offsets,
        step=np.repeat(np.arange(steps, dtype=np.int32), size),
        prompt_id=np.repeat(np.arange(steps * prompts_per_step, dtype=np.int64), samples_per_prompt),
        sample=np.resize(np.arange(samples_per_prompt, dtype=np.int32), count),
        input_tokens=inputs,
        kept_tokens=fill_kept(np.full(len(inputs), -1, np.int32), inputs, responses, offsets),
        response_tokens=responses,
        wait_s=waits,
        end=ends,
        limits=laws.limits,
    )


def with_waits(sessions: Sessions, law: AnyLaw, seed: int = 0) -> Sessions:
    """Return sessions with waits that are not known drawn from a law: assumed, as the origin then says."""
    missing = np.isnan(sessions.wait_s)
    count = int(missing.sum())
    if not count:
        return sessions
    drawn = law.quantile(generator(seed, SESSIONS).random(count))
    waits = sessions.wait_s.copy()
    waits[missing] = np.minimum(drawn, MOST_WAIT_S)
    said = f"{count:,} waits that are not known were drawn from {law.text()}: assumed (seed {seed})."
    note = f"{sessions.origin.note} {said}".strip()
    return replace(sessions, wait_s=waits, origin=msgspec.structs.replace(sessions.origin, note=note))


class Drawn(NamedTuple):
    """Sessions of one step: turns [s], then what is of a turn [t]."""

    turns: Ints
    inputs: Ints
    responses: Ints
    waits: Floats
    ends: npt.NDArray[np.uint8]


def _step(laws: SessionLaws, seed: int, step: int, prompts: int, samples: int) -> Drawn:
    rng = generator(seed, SESSIONS, step)
    prompt = np.repeat(np.arange(prompts), samples)
    most = laws.limits.max_turns
    turns = np.rint(_alike(laws.turns, prompt, prompts, rng)).astype(np.int64)
    turns = np.clip(turns, 1, most or MOST_TURNS)
    first_prompts = np.rint(laws.prompt_tokens.quantile(rng.random(prompts)))[prompt]
    session = np.repeat(np.arange(len(turns)), turns)
    last_at = np.cumsum(turns) - 1
    inputs = np.rint(_of_turns(laws.input_tokens, session, rng, otherwise=0.0))
    inputs[last_at - turns + 1] = first_prompts
    responses = np.rint(_of_turns(laws.response_tokens, session, rng, otherwise=1.0))
    responses[last_at] = np.rint(laws.last_response_tokens.quantile(rng.random(len(turns))))
    waits = np.minimum(_of_turns(laws.wait_s, session, rng, otherwise=np.nan), MOST_WAIT_S)
    waits[last_at] = 0.0
    ends = np.full(len(session), TOOL, np.uint8)
    ends[last_at] = STOP if most is None else np.where(turns == most, TURN_LIMIT, STOP)
    inputs, responses = (
        np.clip(values, low, INT32_MAX).astype(np.int64) for values, low in ((inputs, 0), (responses, 1))
    )
    return _capped(Drawn(turns, inputs, responses, waits, ends), laws)


def _alike(law: Quantity, group: Ints, groups: int, rng: np.random.Generator) -> Floats:
    """Return a draw for each member [n] of a group; those of one group are correlated as the law says."""
    shared = rng.standard_normal(groups)[group]
    own = rng.standard_normal(len(group))
    uniforms = ndtr(np.sqrt(law.correlation) * shared + np.sqrt(1 - law.correlation) * own)
    return law.quantile(np.minimum(uniforms, ALMOST_ONE))


def _of_turns(law: Quantity | None, session: Ints, rng: np.random.Generator, otherwise: float) -> Floats:
    if law is None:
        return np.full(len(session), otherwise)
    return _alike(law, session, int(session[-1]) + 1, rng)


def _capped(drawn: Drawn, laws: SessionLaws) -> Drawn:
    """Cut responses at the cap of a turn, and end sessions at those of context and of all decoded tokens."""
    turn_cap = laws.limits.max_turn_tokens or INT32_MAX
    ends = np.where(drawn.responses > turn_cap, LENGTH, drawn.ends).astype(np.uint8)
    cut = drawn._replace(responses=np.minimum(drawn.responses, turn_cap), ends=ends)
    context_cap = laws.limits.max_context_tokens or INT32_MAX
    decoded_cap = laws.origin.max_response_tokens or INT32_MAX
    starts = np.cumsum(cut.turns) - cut.turns
    contexts = np.add.reduceat(cut.inputs + cut.responses, starts)
    decoded = np.add.reduceat(cut.responses, starts)
    keep = np.ones(len(cut.inputs), bool)
    for session in np.flatnonzero((contexts > context_cap) | (decoded > decoded_cap)):
        begin, end = int(starts[session]), int(starts[session] + cut.turns[session])
        kept = _end_at_caps(cut, begin, end, context_cap, decoded_cap)
        keep[begin + kept : end] = False
        cut.turns[session] = kept
    return Drawn(cut.turns, *(values[keep] for values in cut[1:]))


def _end_at_caps(cut: Drawn, begin: int, end: int, context_cap: int, decoded_cap: int) -> int:
    """Cut the turns from `begin` where the session passes a cap, in place; return how many are left of it.

    A first prompt beyond the context is cut to leave room for one token.
    """
    context = decoded = 0
    for turn in range(begin, end):
        room = min(context_cap - context - int(cut.inputs[turn]), decoded_cap - decoded)
        if room < 1 and turn == begin:
            cut.inputs[turn], room = context_cap - 1, 1
        if room < int(cut.responses[turn]):
            last = turn if room >= 1 else turn - 1
            cut.responses[last] = room if room >= 1 else cut.responses[last]
            cut.ends[last], cut.waits[last] = LENGTH, 0.0
            return last - begin + 1
        decoded += int(cut.responses[turn])
        context += int(cut.inputs[turn]) + int(cut.responses[turn])
    return end - begin


def _origin(laws: SessionLaws, seed: int) -> Origin:
    found = "; ".join(f"{name}: {law.text()}" for name, law in laws.quantities().items())
    modelled = "Modelled: quantities independent, turns alike by Gaussian copulas"
    waits = "" if laws.wait_s else " Waits are not known: no law of them was given."
    return Origin(
        source=f"sessions generated from: {laws.origin.source}",
        kind="generated",
        model=laws.origin.model,
        tokenizer=laws.origin.tokenizer,
        max_response_tokens=laws.origin.max_response_tokens,
        licence=laws.origin.licence,
        note=f"Laws: {found}. {modelled}; seed {seed}.{waits}",
    )
