"""The least that the responses of a step ask of engines: tokens, contexts and prompts, each counted once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tlt.sim.model.requests import StepRequests
from tlt.traces.common.arrays import Floats
from tlt.traces.sessions.schema import Sessions


@dataclass(frozen=True)
class Prompts:
    """What is prefilled of each request, [n] each."""

    tokens: Floats
    chunks: Floats  # engine steps that this takes
    pairs: Floats  # end^2 - begin^2 of its pieces, as step times count them

    @classmethod
    def of(cls, begin: Floats, end: Floats, chunk_tokens: float) -> Prompts:
        """Return pieces from `begin` to `end` of their contexts, one token each at least."""
        tokens = np.maximum(end - begin, 1.0)
        return cls(tokens, np.ceil(tokens / chunk_tokens), np.maximum(end**2 - begin**2, 1.0))


@dataclass(frozen=True)
class LeastWork:
    """Of the requests of a step, [n] each."""

    tokens: Floats  # that are decoded; a prefill emits the first of each turn
    contexts: Floats  # sum of the contexts that these read, as if each were decoded by itself
    shared: Prompts  # computed once for a group where prefixes are cached
    own: Prompts  # what sessions are told later; nothing else was cached before it

    @classmethod
    def of(cls, requests: StepRequests, sessions: Sessions | None, chunk_tokens: float) -> LeastWork:
        """Return the work of single responses or, if `requests` say which they are, of sessions.

        A session finds all that it keeps in a cache, and its tools take no time.
        """
        if sessions is None or requests.session is None:
            prompts = requests.prompt_tokens.astype(np.float64)
            tokens = requests.response_tokens.astype(np.float64) - 1.0
            none = Prompts(*np.zeros((3, len(tokens))))
            shared = Prompts.of(np.zeros(len(prompts)), prompts, chunk_tokens)
            return cls(tokens, _contexts(tokens, prompts), shared, none)
        prompts, begin = (each.astype(np.float64) for each in (sessions.prompt_tokens, sessions.kept_tokens))
        tokens = sessions.response_tokens.astype(np.float64) - 1.0
        pieces = Prompts.of(begin, prompts, chunk_tokens)

        def of_turns(values: Floats) -> Floats:
            return np.asarray(sessions.per_session(values)[requests.session], np.float64)

        def of_some(which: np.ndarray) -> Prompts:
            return Prompts(*(of_turns(each * which) for each in (pieces.tokens, pieces.chunks, pieces.pairs)))

        first = sessions.first
        contexts = of_turns(_contexts(tokens, prompts))
        return cls(of_turns(tokens), contexts, of_some(first), of_some(~first))


def _contexts(tokens: Floats, prompts: Floats) -> Floats:
    return tokens * (prompts + 1.0) + tokens * (tokens - 1.0) / 2.0
