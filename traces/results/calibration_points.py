"""Raw step-time points: what calibrating an engine leaves, and what a law is fitted to."""

from __future__ import annotations

from typing import Literal

import msgspec

from tltsched.draft_config import DraftConfig
from tltsched.policies.base import WhenOff

Provenance = Literal["measured", "published", "borrowed", "assumed"]
SYNTHETIC = "synthetic acceptance"  # in the notes where drafts were accepted at given rates


class Point(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One observed engine step: `batch` requests of `context_tokens` each, under one draft configuration.

    A field that a file leaves out has its default.
    """

    provenance: Provenance
    when_off: WhenOff  # "not_configured": no speculation; "k0": configured
    draft_config: DraftConfig
    batch: int
    context_tokens: float  # mean of one request while it was timed
    engine_step_s: float  # the median where there are repeats
    repeats: int = 1
    spread_s: float = 0.0  # interquartile range over the repeats; with a single one it is not known
    held_out: bool = False  # not used by the fit; the reported error is on these
    excluded: str = ""  # why the point is shown but neither fitted nor scored


class PrefillPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Prefill of `batch` prompts of `prompt_tokens` each."""

    batch: int
    prompt_tokens: int
    prefill_s: float
    repeats: int = 1
    spread_s: float = 0.0


class MixedPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One engine step in which `batch` requests decode while `prompt_tokens` of another are prefilled.

    `engine_step_s` is the decode step before it and what the arrival took on top, summed over the engine
    steps around it: an engine that plans ahead shows it in a neighbour.
    """

    when_off: WhenOff
    draft_config: DraftConfig
    batch: int  # of those that decode
    context_tokens: float  # of one of them
    prompt_tokens: int
    engine_step_s: float  # median
    repeats: int = 1
    spread_s: float = 0.0  # interquartile range
    held_out: bool = False


class SwitchPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What changing the chain length cost: the first engine steps after it over as many steady ones.

    The first engine step still verifies what the old chain drafted, so a change to a longer chain may cost
    less than nothing; a change and its return together show what switching costs.
    """

    from_k: int
    to_k: int
    batch: int
    extra_s: float  # median
    repeats: int
    spread_s: float  # interquartile range


class MeasuredPoints(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that one calibration of a live engine measured, before any law is fitted."""

    name: str
    engine: str
    engine_version: str
    device: str
    date: str
    model: str  # a name of tlt.traces.catalogue.models
    tp: int
    licence: str
    notes: tuple[str, ...]
    graph_tokens: float | None  # no CUDA graph was captured past so many tokens; None: not known
    plain_graph_tokens: float | None = None  # the same of the engine without speculation; None: not recorded
    graph_batches: tuple[int, ...]  # batches that graphs were captured for; empty: no padding
    chunk_tokens: float  # prompt tokens that the engine prefills in one engine step at most
    points: tuple[Point, ...]
    prefill_points: tuple[PrefillPoint, ...]
    switch_points: tuple[SwitchPoint, ...] = ()
    mixed_points: tuple[MixedPoint, ...] = ()
    settings: str = ""  # of the engine, in words: graphs, prefix caching; empty: not recorded
    compiled_engine_steps: int = 0  # dropped because something was compiled or captured inside them
