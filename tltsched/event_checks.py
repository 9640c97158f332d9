"""What an event must be to be taken in: each is valid, or refused whole before anything has changed.

A check says what is wrong with an event as text, or "" where nothing is; it changes nothing. A scheduler asks
it before its transition. What is compared with a wrong kind of value raises TypeError, which `require` turns
into a refusal as well: the event carries what it should not. Counts and times have upper bounds, far beyond
any run, because one absurd value is never lost again: times only go forward, and policies learn rates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from operator import le
from typing import Any, Protocol, TypeVar

from tltsched.commands import SetDraftConfig
from tltsched.errors import ProtocolError
from tltsched.events import (
    BatchFormed,
    ChunksEnded,
    DecisionEnded,
    DraftersMeasured,
    Event,
    PhaseEnded,
    RequestsFinished,
    RequestsWithdrawn,
    RewardsReady,
    RolloutBegan,
    StepBegan,
    ToolsReturned,
    TurnsEnded,
    WorkerLost,
)
from tltsched.schedules.base import Schedule
from tltsched.schedules.cluster_view import ClusterView

Rows = TypeVar("Rows", bound=tuple[Any, ...])
MOST_S = 1e10  # 317 years
MOST_REQUESTS = 2**20  # of one engine step
MOST = 2**53  # tokens, requests, engine steps: what a float still counts
LATE_ENGINE_STEPS = 2  # that an engine which plans ahead verifies after a decision, drafted before it
LONGEST_SHOWN = 400  # characters of an event in a message


class Machine(Protocol):
    """A scheduler, which says who it is in messages."""

    who: str


def refusal(who: str, why: str, event: object) -> ProtocolError:
    """Return the error for an event that is not taken in; whatever it carries, the message can be made."""
    try:
        shown = repr(event)
    except Exception:
        shown = type(event).__name__
    shown = shown if len(shown) <= LONGEST_SHOWN else f"{shown[:LONGEST_SHOWN]}..."
    return ProtocolError(f"{who}: {why}: {shown}")


def require(scheduler: Machine, check: Callable[[Any, Any], str], event: Event, before_s: float) -> None:
    """Raise ProtocolError unless an event comes after `before_s` and a scheduler's check finds it valid."""
    try:
        why = check_time(event, before_s) or check(scheduler, event)
    except (TypeError, AttributeError, ValueError, OverflowError) as error:
        why = f"cannot read it ({error})"
    if why:
        raise refusal(scheduler.who, why, event)


def check_time(event: Event, before_s: float) -> str:
    """Events come in the order of their times, which are finite."""
    if before_s <= event.t_s <= MOST_S:  # NaN is in no order
        return ""
    if event.t_s < before_s:
        return f"time went back from {before_s} s to {event.t_s} s"
    return f"it cannot be at {event.t_s} s: times are numbers up to {MOST_S:.0e}"


def counts(values: Collection[int]) -> bool:
    """Return whether these are all whole numbers from 0 to MOST; their sum says so without a loop of ours."""
    return not values or (type(sum(values)) is int and min(values) >= 0 and max(values) <= MOST)


def _whole(values: Collection[int]) -> bool:
    """Return whether these are all whole numbers of 64 bits, as names of groups are."""
    return not values or (type(sum(values)) is int and min(values) >= -(2**63) and max(values) < 2**63)


def _rows(values: Rows) -> Rows:
    """Return what is a tuple; raises TypeError for whatever else stands in its place."""
    if type(values) is not tuple:
        raise TypeError(f"no tuple: {type(values).__name__}")
    return values


def once(values: Collection[int]) -> bool:
    """Return whether no value comes twice."""
    return len(set(values)) == len(values)


# --- of a worker ------------------------------------------------------------------------------------------


def check_rollout(event: RolloutBegan, step: int) -> str:
    """Rollouts are of the newest step or a later one; -1 is no drafter."""
    if not counts((event.step, event.drafter_version + 1)):
        return "counts steps from 0 and versions of a drafter from 0, -1 without one"
    return "" if event.step >= step else f"has been in step {step} already"


def check_batch(event: BatchFormed) -> str:
    """A batch has a request and a context."""
    if not 1 <= event.requests <= MOST_REQUESTS or not counts((event.requests, event.context_tokens)):
        return "knows only batches of a request or more and no negative context"
    return ""


def check_decision(event: DecisionEnded, open_: SetDraftConfig, deepest: int) -> str:
    """An interval reports the draft configuration that was chosen and counts that do not contradict.

    `deepest` is the depth of the deepest draft configuration so far: the first LATE_ENGINE_STEPS of an
    interval may verify what was drafted under those before, in a rollout that went before as well.
    """
    if event.draft_config != open_.draft_config:
        return f"was to use draft configuration {open_.draft_config}, not {event.draft_config}"
    steps, request_steps, requests = event.engine_steps, event.request_steps, event.requests
    accepted = _rows(event.accepted_by_position)
    if not counts((steps, request_steps, requests, event.context_tokens, *accepted)):
        return "counts cannot be negative, fractions or beyond all bounds"
    if open_.max_engine_steps is not None and steps > open_.max_engine_steps:
        return f"was to run {open_.max_engine_steps} engine steps at most"
    # An engine step decodes one request or more, one that is planned ahead perhaps one more that is done.
    if requests > MOST_REQUESTS or not steps <= request_steps <= steps * MOST_REQUESTS:
        return f"counts contradict: {request_steps} requests in {steps} engine steps"
    if not 0 <= event.decode_s <= MOST_S or (event.decode_s == 0 and steps):
        return "engine steps take time"  # the rates of policies divide by it
    # Most intervals end without a finish, and policies that look at requests are few.
    if event.finished != () and not (once(_rows(event.finished)) and counts(event.finished)):
        return "a request finishes once"
    why = _check_accepted(event, accepted, deepest) if accepted else ""
    return why or ("" if event.by_request == () else _check_by_request(event))


def _check_accepted(event: DecisionEnded, accepted: tuple[int, ...], deepest: int) -> str:
    """A draft is accepted only behind accepted ones, at most once a request and engine step."""
    before, depth = event.request_steps, event.draft_config.depth
    if len(accepted) > deepest:
        return f"drafted {deepest} positions at most"
    own = max(event.engine_steps - LATE_ENGINE_STEPS, 0)  # engine steps that verify its own drafts alone
    if len(accepted) > depth and accepted[depth] > before - own:
        first = f"the first {LATE_ENGINE_STEPS} engine steps alone"
        return f"drafts {depth} positions: deeper drafts are verified in {first}"
    for position in accepted:
        if position > before:
            return "has more drafts accepted at a position than at the one before it, or than were drafted"
        before = position
    return ""


def _check_by_request(event: DecisionEnded) -> str:
    """A request had drafts in some of the engine steps, and no more accepted than it had."""
    rows, depth = _rows(event.by_request), event.draft_config.depth
    if not rows:
        return ""
    requests, steps_of, accepted_of = zip(*rows, strict=True)
    if not (counts(steps_of) and counts(accepted_of) and max(steps_of) <= event.engine_steps):
        return "drafts of a request cannot be"
    if not all(map(le, accepted_of, map(depth.__mul__, steps_of))):
        return "drafts of a request cannot be"
    return "" if counts(requests) and once(requests) else "tells of each request once"


# --- of the cluster ---------------------------------------------------------------------------------------


def check_step(event: StepBegan, step: int, view: ClusterView, schedule: Schedule) -> str:
    """Steps go up; fresh requests have ids that nobody has, and groups that nobody is in."""
    requests = event.requests
    ids = [request.id for request in _rows(requests)]
    if not counts((event.step, event.groups, event.samples)) or event.step <= step:
        return f"after step {step} comes a later one"
    tokens = [request.prompt_tokens for request in requests]
    hints = [request.length_hint_tokens for request in requests]
    groups = [request.group for request in requests]
    if not (counts(ids) and counts(tokens) and counts(hints) and _whole(groups)):
        return "knows ids and tokens of requests as whole numbers from 0, groups as whole numbers"
    if not once(ids) or not view.requests.keys().isdisjoint(ids):
        return "takes each request once"
    if view.requests and not {each.group for each in view.requests.values()}.isdisjoint(groups):
        return "takes fresh groups: one of these has responses alive"
    return schedule.refuses(event)


def check_left(
    event: RequestsFinished | RequestsWithdrawn | ChunksEnded | TurnsEnded,
    view: ClusterView,
    held: Iterable[int],
) -> str:
    """Requests leave the worker that they are on; those that are held for it (`held`) never got there."""
    placed = view.placed.get(event.worker)
    if placed is None:
        return f"worker {event.worker} does not exist or was lost"
    requests = set(_rows(event.requests))
    if len(requests) != len(event.requests) or not placed.keys() >= requests.difference(held):
        return f"worker {event.worker} does not generate all of these requests"
    if not requests.isdisjoint(held):
        return f"worker {event.worker} does not generate all of these requests yet"
    return ""


def check_finished(event: RequestsFinished) -> str:
    """A report is of a request or more."""
    if not event.requests or not counts((event.context_tokens,)):
        return "hears of requests that finished, and of contexts from 0 tokens"
    return ""


def check_phase(event: PhaseEnded, phase: str) -> str:
    """The phase that ends is the one that is on."""
    return "" if event.phase == phase else f"is in phase {phase}"


def check_lost(event: WorkerLost, view: ClusterView) -> str:
    """A worker dies once, and never the last."""
    if event.worker not in view.placed:
        return f"has no worker {event.worker}, or lost it"
    return "" if len(view.placed) > 1 else "would have no worker left"


def check_rewards(event: RewardsReady, due: Mapping[int, None]) -> str:
    """Rewards are of requests that finished and had none yet (`due`)."""
    if not event.requests or not once(_rows(event.requests)) or not due.keys() >= set(event.requests):
        return "waits for no reward of these requests"
    return ""


def check_chunks(event: ChunksEnded, view: ClusterView, chunk_tokens: int) -> str:
    """Only requests that were given a chunk come to its end, with more tokens than before."""
    if not chunk_tokens or not event.requests:
        return "gave out no chunks" if not chunk_tokens else "hears of requests whose chunks ended"
    why = check_generated(event, view.generated)
    if why or all(
        0 < tokens - view.generated[request] <= chunk_tokens
        for request, tokens in zip(event.requests, event.generated_tokens, strict=True)
    ):
        return why
    return f"a chunk has 1 to {chunk_tokens} tokens"


def check_turns(event: TurnsEnded, view: ClusterView, sessions: bool) -> str:
    """Turns end under schedules that take sessions, each behind a token or more."""
    if not sessions:
        return "follows a schedule that takes no sessions"
    if not event.requests:
        return "hears of sessions whose turns ended"
    why = check_generated(event, view.generated)
    began = (view.turn_began.get(request, 0) for request in event.requests)
    if why or all(now > before for now, before in zip(event.generated_tokens, began, strict=True)):
        return why
    return "a turn has a token or more"


def check_tools(event: ToolsReturned, running: Container[int]) -> str:
    """Tools return that were called and have not returned, each with a count of tokens."""
    requests, tokens, ended = _rows(event.requests), _rows(event.observed_tokens), _rows(event.ended)
    if not requests or not once(requests) or not all(request in running for request in requests):
        return "hears of tools that it has called and that have not returned, each once"
    if len(tokens) != len(requests) or not counts(tokens):
        return "hears how many tokens each tool returned, from 0"
    if not once(ended) or not set(requests).issuperset(ended):
        return "ends sessions whose tools have returned, each once"
    return ""


def check_generated(event: RequestsWithdrawn | ChunksEnded | TurnsEnded, before: Mapping[int, int]) -> str:
    """A response has as many tokens as before, or more."""
    tokens = _rows(event.generated_tokens)
    if len(tokens) != len(event.requests) or not counts(tokens):
        return "hears how many tokens each request has, from 0"
    if any(now < before[request] for request, now in zip(event.requests, tokens, strict=True)):
        return "a response loses no tokens"
    return ""


def check_drafters(event: DraftersMeasured) -> str:
    """Acceptance lengths with the bonus token are 1 or more."""
    for length in (event.head_length, event.model_free_length):
        if length is not None and not 1.0 <= length <= MOST:
            return "acceptance lengths with the bonus token are 1 or more"
    return ""
