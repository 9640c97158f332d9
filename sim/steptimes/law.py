"""The law of step times that every calibration and every roofline is written in.

With x = batch x tokens verified per request, C = sum of the contexts of the batch, and non-negative
coefficients, one engine step takes

    no speculation configured   G(x) + request batch + kv C
    configured, K = 0           ... + off + off_request batch + kv C (1 + 1 / layers)
    draft of depth D, top-k     ... + draft + draft_token x + D (draft_pass + draft_pass_request batch topk)
                                     + kv C (1 + D / layers) + kv_verified C (verify - 1)

An MTP module's pass takes `draft_target_share` of G(batch topk) as well, and with `draft_once` one pass
drafts the whole block, however deep. `draft_token` is what rejection sampling and the drafter's first pass
take for each verified token, and `kv_verified` what each further query token of a request takes over its
cache (0 where attention is bound by reading the cache once). Both are fitted to live engines alone: published
tables cannot tell them from the rest. Where graphs were captured for some batch sizes only, `batch` above is
the next larger one of them.

For a mixture of experts G has the term of tlt.sim.steptimes.experts as well: what the experts take that x
tokens wake. `request_s` is what each request adds whatever its context: windows, states of linear attention.

G grows with x along straight pieces between knots (a cost that never falls: memory-bound, then tile by tile
compute-bound). Past `graph_tokens` no CUDA graph was captured and `eager_s` is added. The drafter has one
layer, so each of its passes reads one layer's share of the KV cache. Prefill of n tokens in chunks of c takes
ceil(n / c) prefill_chunk + n prefill_token + prefill_pair (sum of squared lengths).

Engines prefill while they decode. An engine step that does both takes

    max(host, prefill_token n + prefill_pair pairs, decode + share (G(x + n) - G(x)) + prefill_pair pairs)
    + mixed + mixed_request batch

A prompt's token costs a share of what a token to verify costs, past the last knot (where none was timed) of
what it costs alone; and to decode beside it never makes a prefill shorter. The host is the slower part up to
some thousand tokens, and takes `host` whatever is in it: 27 ms on a 7B model where a decode step takes 5, if
such steps have no CUDA graph. With stock graphs they have one up to `graph_tokens` (without speculation
`plain_graph_tokens`), and `host` is 10 ms up to there and `eager_host` beyond. `prefill_chunk` is no part of
it: it is measured on an idle engine, and holds what an idle engine takes to begin. Beside a prompt the
kernels of decode alone do not serve: each request that decodes takes `mixed_request` more. `share`, `host`,
`eager_host`, `mixed` and `mixed_request` are fitted to measured engine steps of that kind. Where there are
none they are 1, not known and 0, and such a step takes no less than the same prefill of an idle engine,
prefill_chunk included.

With speculation configured the drafter reads every prompt as well: `draft_prefill` a token on top of any
engine step that prefills, fitted to the same engine steps; 0 where there are none.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil

import msgspec
import numpy as np
import numpy.typing as npt

from tlt.sim.steptimes.experts import ExpertTerm
from tlt.traces.common.arrays import Bools, Floats
from tltsched.draft_config import DraftConfig
from tltsched.errors import InputError
from tltsched.policies.base import WhenOff

MOST_PIECES, MOST_TOKENS, MOST_SHARE, MOST_S = 4_096, 2.0**31, 1e3, 1e4
_COUNTS, _SHARES = (
    ("knots_tokens", "graph_batches", "graph_tokens", "plain_graph_tokens"),
    ("drafter_kv_share", "mixed_token_share"),
)


class Coefficients(msgspec.Struct, frozen=True, kw_only=True):
    """Coefficients of the law above; all in seconds, or seconds per unit of what the name says."""

    knots_tokens: tuple[float, ...]  # ascending; the last piece goes on without end
    floor_s: float  # G at x = knots_tokens[0]
    slopes_s_per_token: tuple[float, ...]  # one a piece: between knot i and i + 1, the last one open-ended
    kv_s_per_token: float
    drafter_kv_share: float  # 1 / layers of the target
    off_s: float
    off_s_per_request: float
    draft_s: float
    draft_pass_s: float
    draft_pass_s_per_request: float
    graph_tokens: float | None  # None: not known, no eager term
    eager_s: float
    prefill_chunk_s: float
    prefill_s_per_token: float
    prefill_s_per_pair: float
    draft_s_per_token: float = 0.0
    kv_s_per_verified_token: float = 0.0
    graph_batches: tuple[int, ...] = ()  # ascending; empty: not known, no padding
    mixed_s: float = 0.0
    mixed_s_per_request: float = 0.0
    mixed_host_s: float | None = None  # None: no such engine step was timed
    mixed_eager_host_s: float | None = None  # past the graphs; None: graphs make no difference to it
    plain_graph_tokens: float | None = None  # graph_tokens without speculation; None: as with it
    mixed_token_share: float = 1.0
    request_s: float = 0.0
    experts: ExpertTerm | None = None
    draft_target_share: float = 0.0
    draft_once: bool = False
    draft_prefill_s_per_token: float = 0.0

    def __post_init__(self) -> None:
        knots, slopes = self.knots_tokens, self.slopes_s_per_token
        if not 1 <= len(knots) == len(slopes) <= MOST_PIECES:
            raise InputError(
                "knots_tokens", f"{len(knots)} of them and {len(slopes)} slopes_s_per_token",
                f"as many slopes as knots, 1 to {MOST_PIECES}", "fit the calibration again",
            )  # fmt: skip
        for name, values in (("knots_tokens", knots), ("graph_batches", self.graph_batches)):
            rising = all(low < high for low, high in pairwise(values)) and (not values or values[0] >= 0)
            if not rising or (values and not values[-1] <= MOST_TOKENS):
                raise InputError(name, values, "rising numbers from 0", "fit the calibration again")
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, ExpertTerm):  # has bounds of its own
                continue
            for each in value if isinstance(value, tuple) else (value,):
                most = MOST_TOKENS if name in _COUNTS else MOST_SHARE if name in _SHARES else MOST_S
                if each is not None and not 0 <= each <= most:  # NaN is in no range
                    raise InputError(name, each, f"0 to {most:g}", "fit the calibration again")

    def scaled(self, target: float, kv: float, drafter: float) -> Coefficients:
        """Return the law with the target's step, the KV term and the drafter's passes times these factors."""
        return msgspec.structs.replace(
            self,
            floor_s=self.floor_s * target,
            slopes_s_per_token=tuple(slope * target for slope in self.slopes_s_per_token),
            eager_s=self.eager_s * target,
            experts=self.experts and self.experts.times(target),
            request_s=self.request_s * kv,
            kv_s_per_token=self.kv_s_per_token * kv,
            off_s=self.off_s * drafter,
            off_s_per_request=self.off_s_per_request * drafter,
            draft_s=self.draft_s * drafter,
            draft_pass_s=self.draft_pass_s * drafter,
            draft_pass_s_per_request=self.draft_pass_s_per_request * drafter,
            draft_s_per_token=self.draft_s_per_token * drafter,
            draft_prefill_s_per_token=self.draft_prefill_s_per_token * drafter,
            draft_target_share=self.draft_target_share * drafter / target,
            kv_s_per_verified_token=self.kv_s_per_verified_token * kv,
        )

    def times(self, factor: float) -> Coefficients:
        """Return the law with everything, prefill included, times a factor."""
        return msgspec.structs.replace(
            self.scaled(factor, factor, factor),
            prefill_chunk_s=self.prefill_chunk_s * factor,
            prefill_s_per_token=self.prefill_s_per_token * factor,
            prefill_s_per_pair=self.prefill_s_per_pair * factor,
            mixed_s=self.mixed_s * factor,
            mixed_s_per_request=self.mixed_s_per_request * factor,
            mixed_host_s=self.mixed_host_s and self.mixed_host_s * factor,
            mixed_eager_host_s=self.mixed_eager_host_s and self.mixed_eager_host_s * factor,
        )

    def target_s(self, tokens: npt.ArrayLike) -> Floats:
        """Return G(x) for x tokens read by the target in one engine step (any shape)."""
        x = np.asarray(tokens, np.float64)
        seconds = np.full(x.shape, self.floor_s)
        for slope, piece in zip(self.slopes_s_per_token, pieces(x, self.knots_tokens), strict=True):
            seconds += slope * piece
        return seconds if self.experts is None else seconds + self.experts.seconds(x)

    def eager_part_s(self, tokens: npt.ArrayLike) -> Floats:
        """Return what the target takes longer where x tokens have no CUDA graph (any shape)."""
        return np.where(without_graph(tokens, self.graph_tokens), self.eager_s, 0.0)

    def fixed_s(self, draft_config: DraftConfig, when_off: WhenOff, batch: npt.ArrayLike) -> Floats:
        """Return the part of an engine step that no context changes, for each batch size (any shape)."""
        b = padded(batch, self.graph_batches)
        x = b * draft_config.verify_tokens
        seconds = self.target_s(x) + self.eager_part_s(x)
        if self.request_s:
            seconds = seconds + self.request_s * b
        if draft_config.depth:
            per_pass = self.draft_pass_s + self.draft_pass_s_per_request * b * draft_config.topk
            per_pass += self._target_share_s(b * draft_config.topk)
            return seconds + self.draft_s + self.draft_s_per_token * x + self.passes(draft_config) * per_pass
        if when_off == "k0":
            return seconds + self.off_s + self.off_s_per_request * b + self._target_share_s(b)
        return seconds

    def passes(self, draft_config: DraftConfig) -> int:
        """Return how often the drafter runs in an engine step."""
        return min(draft_config.depth, 1) if self.draft_once else draft_config.depth

    def _target_share_s(self, tokens: Floats) -> Floats | float:
        return self.draft_target_share * self.target_s(tokens) if self.draft_target_share else 0.0

    def context_s_per_token(self, draft_config: DraftConfig, when_off: WhenOff) -> float:
        """Return the seconds that one cached token adds to an engine step."""
        passes = self.passes(draft_config) or int(when_off == "k0")
        further = self.kv_s_per_verified_token * (draft_config.verify_tokens - 1)
        return self.kv_s_per_token * (1.0 + passes * self.drafter_kv_share) + further

    def drafter_reads_s(self, draft_config: DraftConfig, when_off: WhenOff, tokens: float) -> float:
        """Return what an engine step takes longer since a drafter reads the prompts in it as well."""
        reads = _drafter_is_loaded(draft_config, when_off)
        return tokens * self.draft_prefill_s_per_token if reads else 0.0

    def chunk_s(self, tokens: float, pairs: float) -> float:
        """Return the seconds of an engine step that prefills `tokens` and nothing else.

        `pairs` sums end^2 - begin^2 over the pieces of prompts in it.
        """
        return self.prefill_chunk_s + tokens * self.prefill_s_per_token + pairs * self.prefill_s_per_pair

    def mixed_engine_step_s(
        self, draft_config: DraftConfig, when_off: WhenOff, batch: float, decode_s: float, tokens: float,
        pairs: float,
    ) -> float:  # fmt: skip
        """Return the seconds of an engine step that prefills `tokens` beside `batch` requests that decode.

        `decode_s`: of the same engine step without them.
        """
        read_tokens = batch * draft_config.verify_tokens
        first, last = self.knots_tokens[0], self.knots_tokens[-1]
        read, whole = (min(max(each, first), last) for each in (read_tokens, read_tokens + tokens))
        beyond = max(read_tokens + tokens - max(whole, read_tokens), 0.0)
        beyond_s = beyond * self.prefill_s_per_token
        riding_s = self.mixed_token_share * (self._within_s(whole) - self._within_s(read) + beyond_s)
        if self.experts is not None:
            both = self.experts.seconds(np.array([read_tokens, read_tokens + tokens]))
            riding_s += float(both[1] - both[0])
        if self.graph_tokens is not None and read_tokens <= self.graph_tokens < read_tokens + tokens:
            riding_s += self.eager_s
        with_them_s = decode_s + riding_s + pairs * self.prefill_s_per_pair
        alone_s, host_s = self.chunk_s(tokens, pairs), self.mixed_host_s
        if host_s is not None:
            if self.mixed_eager_host_s is not None and self.past_graphs(
                read_tokens + tokens, draft_config, when_off
            ):
                host_s = self.mixed_eager_host_s
            alone_s = max(alone_s - self.prefill_chunk_s, host_s)
        drafter_s = self.drafter_reads_s(draft_config, when_off, tokens)
        return max(alone_s, with_them_s) + self.mixed_s + self.mixed_s_per_request * batch + drafter_s

    def past_graphs(self, tokens: float, draft_config: DraftConfig, when_off: WhenOff) -> bool:
        """Return whether an engine step of so many tokens, prompts included, is larger than any graph."""
        plain = not _drafter_is_loaded(draft_config, when_off)
        largest = self.plain_graph_tokens if plain and self.plain_graph_tokens else self.graph_tokens
        return largest is not None and tokens > largest

    def _within_s(self, tokens: float) -> float:
        """Return G at a number of tokens that lies between the knots, less the floor."""
        within = zip(self.slopes_s_per_token, pairwise(self.knots_tokens), strict=False)
        return sum(slope * min(max(tokens - low, 0.0), high - low) for slope, (low, high) in within)

    def prefill_s(self, tokens: float, squared_tokens: float, chunk_tokens: float) -> float:
        """Return the seconds to prefill `tokens` in all, whose squared lengths sum to `squared_tokens`."""
        chunks = ceil(tokens / chunk_tokens)
        return (
            chunks * self.prefill_chunk_s
            + tokens * self.prefill_s_per_token
            + squared_tokens * self.prefill_s_per_pair
        )


def _drafter_is_loaded(draft_config: DraftConfig, when_off: WhenOff) -> bool:
    return draft_config.depth > 0 or when_off == "k0"


def pieces(tokens: Floats, knots: tuple[float, ...]) -> list[Floats]:
    """Return how much of each x lies in each piece between knots, shaped like x; the last piece is open."""
    inner = [np.clip(tokens - low, 0.0, high - low) for low, high in pairwise(knots)]
    return [*inner, np.maximum(tokens - knots[-1], 0.0)]


def without_graph(size: npt.ArrayLike, largest: float | None) -> Bools:
    """Return where an engine step is larger than the `largest` that has a CUDA graph (any shape).

    None: it is not known, or there is no largest one, and every size has a graph.
    """
    return np.asarray(np.asarray(size, np.float64) > (np.inf if largest is None else largest))


def padded(batch: npt.ArrayLike, graph_batches: tuple[int, ...]) -> Floats:
    """Return each batch size, or the next larger one of `graph_batches` if there is one (any shape)."""
    b = np.asarray(batch, np.float64)
    if not graph_batches:
        return b
    sizes = np.asarray(graph_batches, np.float64)
    above = sizes[np.minimum(sizes.searchsorted(b), len(sizes) - 1)]
    return np.where(b > 0, np.maximum(b, above), b)
