"""Sessions put together from requests: which belong together, what a prompt keeps of the one before, waits.

A session's requests follow one another; where two run at once, the later one begins a session of its own.
With blocks a prompt keeps what its leading blocks share with the prompt before, and all of the context if it
has all of those; without, all of the context if it is long enough, else as much as the prompt before had.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tlt.traces.importers.reading.items import Request, Response
from tlt.traces.lengths.schema import Origin
from tlt.traces.sessions.build import from_structs
from tlt.traces.sessions.schema import Sessions
from tlt.traces.sessions.turns import Session, Turn
from tltsched.errors import InputError

MOST_REQUESTS = 5_000_000  # about 2 GB of memory
MOST_AT_ONCE = 64  # sessions of one name that a request may go on with
BLOCK_SIZES = (512, 16, 64, 256, 128, 32, 1024, 24, 8, 4, 2, 1)  # tried where a file does not state its own
NOT_KNOWN = float("nan")


@dataclass
class Chain:
    """A session as it is put together."""

    requests: list[Response] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)  # before each request but the first

    def last(self) -> Request:
        """Return its last request so far."""
        request = self.requests[-1].request
        assert request is not None
        return request


@dataclass
class HeldRequests:
    """Takes requests in the order of the file."""

    held: list[Response] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, response: Response) -> None:
        """Keep a request."""
        if len(self.held) >= MOST_REQUESTS:
            raise InputError(
                "requests", f"over {MOST_REQUESTS:,}", f"{MOST_REQUESTS:,}", "import it in parts"
            )
        self.held.append(response)

    def sessions(self, origin: Origin, step: int) -> Sessions | None:
        """Return the sessions, each a prompt of its own; None if none has a second turn. Fills `notes`."""
        chains = self._chains()
        if all(len(chain.requests) == 1 for chain in chains):
            return None
        block_tokens = _block_tokens(self.held)
        if not block_tokens and any(one.request and one.request.blocks for one in self.held):
            self.notes.append("Blocks are left out: no size of them fits all prompts.")
        ids: dict[object, int] = {}
        begun = [chain.requests[0].arrived_s for chain in chains]
        known = [begin for begin in begun if begin is not None]
        if known and len(known) < len(begun):
            self.notes.append(f"Arrivals are left out: {len(begun) - len(known):,} sessions have none.")
        least = min(known) if len(known) == len(begun) else None
        made = [
            Session(
                step=step,
                prompt_id=number,
                arrived_s=None if least is None or begin is None else begin - least,
                turns=self._turns(chain, block_tokens, ids),
            )
            for number, (chain, begin) in enumerate(zip(chains, begun, strict=True))
        ]
        return from_structs(made, origin, block_tokens=block_tokens)

    def _chains(self) -> list[Chain]:
        links = Links()
        for response in _in_order(self.held):
            links.add(response)
        for count, what in (
            (links.at_once, "ran beside another of their session, or branched off it: each begins a session"),
            (
                links.for_others,
                "wait for requests of other sessions too: what those take is not in the waits",
            ),
        ):
            if count:
                self.notes.append(f"{count:,} requests {what}.")
        return links.chains

    def _turns(self, chain: Chain, block_tokens: int, ids: dict[object, int]) -> tuple[Turn, ...]:
        turns = []
        for place, response in enumerate(chain.requests):
            request = response.request
            assert request is not None
            kept = 0 if place == 0 else _kept(chain.requests[place - 1], response, block_tokens)
            last = place == len(chain.requests) - 1
            scope = request.session if request.local_blocks else ""
            numbered = tuple(ids.setdefault((scope, block), len(ids)) for block in request.blocks)
            turns.append(
                Turn(
                    input_tokens=response.prompt_tokens - kept,
                    response_tokens=response.response_tokens,
                    wait_s=0.0 if last else chain.waits[place],
                    end=response.why_ended(),
                    kept_tokens=kept,
                    blocks=numbered if block_tokens else (),
                )
            )
        return tuple(turns)


class Links:
    """Finds the session that a request goes on with."""

    def __init__(self) -> None:
        self.chains: list[Chain] = []
        self.at_once = self.for_others = 0
        self._running: dict[str, deque[Chain]] = {}
        self._ends: dict[tuple[str, str], Chain] = {}  # (session, id of its last request)
        self._seen: set[tuple[str, str]] = set()

    def add(self, response: Response) -> None:
        """Put a request behind the one that it follows, or begin a session with it."""
        request = response.request
        assert request is not None
        running = self._running.setdefault(request.session, deque(maxlen=MOST_AT_ONCE))
        chain = self._by_time(request, running) if request.after is None else self._by_name(request, running)
        if chain is None:
            chain = Chain()
            self.chains.append(chain)
            running.append(chain)
        else:
            self._ends.pop((request.session, chain.last().id), None)
            chain.waits.append(_wait(chain.last(), request))
        chain.requests.append(response)
        if request.after is not None:
            self._ends[request.session, request.id] = chain
            self._seen.add((request.session, request.id))

    def _by_time(self, request: Request, running: deque[Chain]) -> Chain | None:
        found = next((one for one in reversed(running) if _ended(one.last(), request)), None)
        self.at_once += found is None and bool(running)
        return found

    def _by_name(self, request: Request, running: deque[Chain]) -> Chain | None:
        after = [(request.session, name) for name in request.after or ()]
        found = next((self._ends[key] for key in after if key in self._ends), None)
        if found is None:
            self.at_once += any(key in self._seen for key in after) or bool(running and request.session)
        self.for_others += found is not None and len(after) > 1
        return found


def _in_order(requests: Sequence[Response]) -> Sequence[Response]:
    """Return requests by their begin where all state it, else as the file has them."""
    begins = [one.request.started_s for one in requests if one.request and one.request.started_s is not None]
    if len(begins) < len(requests):
        return requests
    return [one for _, one in sorted(zip(begins, requests, strict=True), key=lambda pair: pair[0])]  # stable


def _ended(before: Request, request: Request) -> bool:
    """Return whether a request had ended when another began; where that is not known it is taken to have."""
    if before.ended_s is None or request.started_s is None:
        return True
    return request.started_s >= before.ended_s - 1e-3  # clocks of milliseconds


def _wait(before: Request, request: Request) -> float:
    if request.wait_s is not None:
        return request.wait_s
    if before.ended_s is None or request.started_s is None:
        return NOT_KNOWN
    return max(request.started_s - before.ended_s, 0.0)


def _kept(before: Response, response: Response, block_tokens: int) -> int:
    """Return how many tokens of the context before the prompt begins with."""
    context = before.prompt_tokens + before.response_tokens
    ours, theirs = (one.request.blocks if one.request else () for one in (response, before))
    if not block_tokens or not ours or not theirs:
        if response.prompt_tokens >= context:
            return context
        return min(before.prompt_tokens, response.prompt_tokens)
    shared = next((at for at, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
    common = min(len(ours), len(theirs)) if shared is None else shared
    if common >= before.prompt_tokens // block_tokens and response.prompt_tokens >= context:
        return context
    return min(common * block_tokens, context, response.prompt_tokens)


def _block_tokens(requests: Sequence[Response]) -> int:
    """Return the tokens of a block: stated, else the size that fits all prompts; 0: none does."""
    with_blocks = [
        (one.prompt_tokens, len(one.request.blocks)) for one in requests if one.request and one.request.blocks
    ]
    stated = {one.request.block_tokens for one in requests if one.request and one.request.blocks}
    tried = [size for size in stated if size is not None] if stated - {None} else list(BLOCK_SIZES)
    if not with_blocks or len(stated - {None}) > 1:
        return 0
    for size in tried:
        if all(count in (-(-tokens // size), tokens // size) for tokens, count in with_blocks):
            return size
    return 0
