"""The figures of sessions: turns, tokens decoded and observed, waits, cuts, and prefixes that are shared."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tlt.traces.common.arrays import Floats
from tlt.traces.lengths.schema import KIND_LABELS, Kind
from tlt.traces.sessions.schema import Blocks, Sessions
from tlt.traces.sessions.turns import ENDS

ASSUMED_TOKENS_PER_S = 50.0  # of one running response, where nothing is stated


class Spread(msgspec.Struct, kw_only=True, frozen=True):
    """Mean and percentiles (interpolated) of one quantity."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class Waits(msgspec.Struct, kw_only=True, frozen=True):
    """Waits between turns; figures are of those that are known.

    per_session_s: of sessions all of whose waits are known, with more than one turn.
    waiting_share: of the time of these sessions, if responses decode at `tokens_per_s` and nothing queues.
    """

    turns: int  # that a further one follows
    known: int
    spread_s: Spread | None
    per_session_s: Spread | None
    waiting_share: float | None
    tokens_per_s: float
    tokens_per_s_stated: bool


class Prefixes(msgspec.Struct, kw_only=True, frozen=True):
    """Tokens of prompts, by what an engine may have in its cache.

    kept_share: of the tokens of all prompts, those that the session's own turn before had.
    shared_share: of the tokens of first prompts, those that an earlier session's first prompt begins with, in
        whole blocks; None: the file has no blocks.
    shortened: turns whose prompt does not hold all of the context before.
    reprefilled: prompt tokens if each turn computes its whole prompt, over new tokens alone.
    """

    prompt_tokens: int
    new_tokens: int
    kept_share: float
    shared_share: float | None
    shortened: int
    reprefilled: float


class SessionDescription(msgspec.Struct, kw_only=True, frozen=True):
    """What sessions are made of. Tokens are counted, never estimated."""

    sessions: int
    turns: int
    steps: int
    groups: int
    turns_per_session: Spread
    decoded_tokens: int
    observed_tokens: int  # input after first prompts
    first_prompt_tokens: Spread | None  # None: not known
    response_tokens: Spread  # of a turn
    observation_tokens: Spread | None  # of a turn after the first; None: there is none
    decoded_per_session: Spread
    context_tokens: Spread  # at the end of a session
    waits: Waits
    ends: dict[str, int]  # of turns
    last_ends: dict[str, int]  # of sessions
    prefixes: Prefixes
    arrivals: bool
    max_response_tokens: int | None
    max_turn_tokens: int | None
    max_context_tokens: int | None
    max_turns: int | None
    kind: Kind
    kind_label: str
    origin: str


def describe_sessions(sessions: Sessions, tokens_per_s: float | None = None) -> SessionDescription:
    """Return the figures of `sessions`. tokens_per_s: at which one response is decoded; None: 50, assumed."""
    first, last = sessions.first, sessions.last
    prompts = sessions.input_tokens[first]
    decoded = sessions.per_session(sessions.response_tokens.astype(np.int64))
    limits = sessions.limits
    return SessionDescription(
        sessions=len(sessions),
        turns=len(first),
        steps=len(np.unique(sessions.step)),
        groups=len(np.unique(np.stack([sessions.step, sessions.prompt_id], axis=1), axis=0)),
        turns_per_session=_spread(sessions.turns),
        decoded_tokens=int(decoded.sum()),
        observed_tokens=int(sessions.input_tokens[~first].astype(np.int64).sum()),
        first_prompt_tokens=_spread(prompts) if prompts.any() else None,
        response_tokens=_spread(sessions.response_tokens),
        observation_tokens=None if first.all() else _spread(sessions.input_tokens[~first]),
        decoded_per_session=_spread(decoded),
        context_tokens=_spread(sessions.context_tokens[last]),
        waits=_waits(sessions, decoded, tokens_per_s),
        ends=_counted(sessions.end),
        last_ends=_counted(sessions.end[last]),
        prefixes=_prefixes(sessions),
        arrivals=sessions.arrived_s is not None,
        max_response_tokens=sessions.origin.max_response_tokens,
        max_turn_tokens=limits.max_turn_tokens,
        max_context_tokens=limits.max_context_tokens,
        max_turns=limits.max_turns,
        kind=sessions.origin.kind,
        kind_label=KIND_LABELS[sessions.origin.kind].replace("lengths", "sessions"),
        origin=sessions.origin.text(),
    )


def _spread(values: npt.NDArray[Any]) -> Spread:
    p50, p90, p99 = np.percentile(values, (50, 90, 99))
    return Spread(
        mean=float(values.mean()), p50=float(p50), p90=float(p90), p99=float(p99), max=float(values.max())
    )


def _counted(ends: npt.NDArray[np.uint8]) -> dict[str, int]:
    counts = np.bincount(ends, minlength=len(ENDS))
    return {name: int(count) for name, count in zip(ENDS, counts, strict=True) if count}


def _waits(sessions: Sessions, decoded: npt.NDArray[Any], tokens_per_s: float | None) -> Waits:
    """Return what is known of waits between turns; that after the last turn counts for the session's time."""
    last, wait = sessions.last, sessions.wait_s
    between = wait[~last]
    known = between[np.isfinite(between)]
    waited: Floats = sessions.per_session(wait)  # NaN where one is not known
    whole = np.isfinite(waited) & (sessions.turns > 1)
    rate = tokens_per_s or ASSUMED_TOKENS_PER_S
    share = None
    if whole.any():
        seconds = float(waited[whole].sum())
        share = seconds / (seconds + float(decoded[whole].sum()) / rate)
    return Waits(
        turns=len(between),
        known=len(known),
        spread_s=_spread(known) if len(known) else None,
        per_session_s=_spread(waited[whole]) if whole.any() else None,
        waiting_share=share,
        tokens_per_s=rate,
        tokens_per_s_stated=tokens_per_s is not None,
    )


def _prefixes(sessions: Sessions) -> Prefixes:
    prompts, new = int(sessions.prompt_tokens.sum()), int(sessions.input_tokens.astype(np.int64).sum())
    before = np.concatenate([[0], sessions.context_tokens[:-1]])
    shortened = ~sessions.first & (sessions.kept_tokens < before)
    blocks = sessions.blocks
    return Prefixes(
        prompt_tokens=prompts,
        new_tokens=new,
        kept_share=1 - new / prompts if prompts else 0.0,
        shared_share=None if blocks is None else _shared(sessions, blocks),
        shortened=int(shortened.sum()),
        reprefilled=prompts / new if new else 1.0,
    )


def _shared(sessions: Sessions, blocks: Blocks) -> float | None:
    """Return which share of first prompts one before (by arrival, else in order) begins with as well."""
    order = (
        np.arange(len(sessions))
        if sessions.arrived_s is None
        else np.argsort(sessions.arrived_s, kind="stable")
    )
    seen: set[int] = set()
    tokens = shared = 0
    for session in order.tolist():
        turn = int(sessions.turn_offsets[session])
        ids = blocks.ids[blocks.offsets[turn] : blocks.offsets[turn + 1]].tolist()
        if not ids:
            continue
        prompt = int(sessions.input_tokens[turn])
        known = next((index for index, one in enumerate(ids) if one not in seen), len(ids))
        tokens += prompt
        shared += min(known * blocks.block_tokens, prompt)
        seen.update(ids)
    return shared / tokens if tokens else None
