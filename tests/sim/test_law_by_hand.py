"""The law of step times against its own formula, written out once more for one batch at a time."""

from __future__ import annotations

from itertools import product
from math import ceil, inf, nan
from typing import Any

import msgspec
import numpy as np
import pytest

from tlt.sim.steptimes.calibration import mixed_errors, predict_mixed_s
from tlt.sim.steptimes.experts import ExpertTerm
from tlt.sim.steptimes.fit import fit_mixed
from tlt.sim.steptimes.law import (
    MOST_PIECES,
    MOST_S,
    MOST_SHARE,
    MOST_TOKENS,
    Coefficients,
    padded,
    pieces,
    without_graph,
)
from tlt.traces.results.calibration_points import MixedPoint
from tltsched.draft_config import OFF, DraftConfig, chain
from tltsched.errors import InputError
from tltsched.policies.base import WhenOff

# Every coefficient another number, none that is 0 or 1 or a power of two times another.
LAW = Coefficients(
    knots_tokens=(3.0, 17.0, 64.0), floor_s=0.011, slopes_s_per_token=(0.00021, 0.00013, 0.00037),
    kv_s_per_token=0.0000071, drafter_kv_share=0.037, off_s=0.0019, off_s_per_request=0.00023,
    draft_s=0.0029, draft_pass_s=0.0031, draft_pass_s_per_request=0.00041, graph_tokens=70.0, eager_s=0.0053,
    prefill_chunk_s=0.0043, prefill_s_per_token=0.00047, prefill_s_per_pair=0.00000059,
    draft_s_per_token=0.000061, kv_s_per_verified_token=0.0000067, mixed_s=0.00073, mixed_token_share=0.79,
    mixed_host_s=0.033, request_s=0.00083, draft_target_share=0.089, mixed_s_per_request=0.000017,
    mixed_eager_host_s=0.047, plain_graph_tokens=40.0, draft_prefill_s_per_token=0.000011,
)  # fmt: skip
TREE = DraftConfig(5, 3, 12)
DRAFTS = (OFF, chain(1), chain(4), TREE)
BATCHES = (1, 2, 3, 5, 8, 17, 18, 64, 65, 200)


def target_s(law: Coefficients, x: float) -> float:
    """G(x), piece by piece."""
    seconds, knots = law.floor_s, (*law.knots_tokens, inf)
    for low, high, slope in zip(knots[:-1], knots[1:], law.slopes_s_per_token, strict=True):
        seconds += slope * max(0.0, min(x, high) - low)
    return seconds


def fixed_s(law: Coefficients, draft: DraftConfig, when_off: str, batch: int) -> float:
    """What the docstring of the law says of an engine step, contexts left out."""
    x = batch * draft.verify_tokens
    seconds = target_s(law, x) + law.request_s * batch
    if law.graph_tokens is not None and x > law.graph_tokens:
        seconds += law.eager_s
    if draft.depth:
        drafted = batch * draft.topk
        one = law.draft_pass_s + law.draft_pass_s_per_request * drafted
        one += law.draft_target_share * target_s(law, drafted)
        return (
            seconds + law.draft_s + law.draft_s_per_token * x + (1 if law.draft_once else draft.depth) * one
        )
    if when_off == "k0":
        seconds += law.off_s + law.off_s_per_request * batch + law.draft_target_share * target_s(law, batch)
    return seconds


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("draft", DRAFTS, ids=str)
def test_the_part_of_an_engine_step_that_no_context_changes(draft: DraftConfig, once: bool) -> None:
    law = msgspec.structs.replace(LAW, draft_once=once)
    for when_off in ("not_configured", "k0", "drafter_dropped"):
        expected = [fixed_s(law, draft, when_off, batch) for batch in BATCHES]
        assert law.fixed_s(draft, when_off, BATCHES) == pytest.approx(expected, rel=1e-12)  # type: ignore[arg-type]
        assert float(law.fixed_s(draft, when_off, 5)) == pytest.approx(expected[3], rel=1e-12)  # type: ignore[arg-type]


def test_without_terms_of_requests_and_mtp_they_cost_nothing() -> None:
    law = msgspec.structs.replace(LAW, request_s=0.0, draft_target_share=0.0)
    for draft in DRAFTS:
        expected = [fixed_s(law, draft, "k0", batch) for batch in BATCHES]
        assert law.fixed_s(draft, "k0", BATCHES) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("once", [False, True])
def test_a_cached_token_is_read_by_the_target_and_in_part_by_each_pass(once: bool) -> None:
    law = msgspec.structs.replace(LAW, draft_once=once)
    kv, share, further = law.kv_s_per_token, law.drafter_kv_share, law.kv_s_per_verified_token
    assert law.context_s_per_token(OFF, "not_configured") == pytest.approx(kv, rel=1e-12)
    assert law.context_s_per_token(OFF, "drafter_dropped") == pytest.approx(kv, rel=1e-12)
    assert law.context_s_per_token(OFF, "k0") == pytest.approx(kv * (1 + share), rel=1e-12)
    for draft in DRAFTS[1:]:
        expected = kv * (1 + (1 if once else draft.depth) * share) + further * (draft.verify_tokens - 1)
        assert law.context_s_per_token(draft, "not_configured") == pytest.approx(expected, rel=1e-12)
    assert [law.passes(draft) for draft in DRAFTS] == ([0, 1, 1, 1] if once else [0, 1, 4, 5])


def test_prefill_in_chunks() -> None:
    """ceil(n / c) chunks, n tokens and the squares of their lengths."""
    for tokens, chunk in ((1, 512), (512, 512), (513, 512), (2000, 512)):
        expected = ceil(tokens / chunk) * 0.0043 + tokens * 0.00047 + tokens**2 * 0.00000059
        assert LAW.prefill_s(tokens, tokens**2, chunk) == pytest.approx(expected, rel=1e-12)
    assert LAW.chunk_s(300, 90_000) == pytest.approx(0.0043 + 300 * 0.00047 + 90_000 * 0.00000059, rel=1e-12)


@pytest.mark.parametrize("batch", [1, 5, 14, 16, 50, 64, 70, 71, 300])
@pytest.mark.parametrize("tokens", [1, 3, 12, 26, 60, 500])
@pytest.mark.parametrize("slope", [0.00037, 0.00091])
@pytest.mark.parametrize(
    ("draft", "when_off"), [(OFF, "not_configured"), (OFF, "k0"), (chain(4), "not_configured"), (TREE, "k0")]
)
def test_an_engine_step_that_prefills_and_decodes(
    batch: int, tokens: int, slope: float, draft: DraftConfig, when_off: WhenOff
) -> None:
    """A share of G's rise, past the last knot of prefill's; no shorter than prefill or the host.

    The host takes longer past the graphs of the engine, which without speculation are fewer.
    """
    law = msgspec.structs.replace(LAW, slopes_s_per_token=(0.00021, 0.00013, slope))
    read, loaded = batch * draft.verify_tokens, draft.depth > 0 or when_off == "k0"
    low, high = law.knots_tokens[0], law.knots_tokens[-1]
    inside = [min(max(each, low), high) for each in (read, read + tokens)]
    beyond = max(read + tokens - high, 0) - max(read - high, 0)
    riding = 0.79 * (target_s(law, inside[1]) - target_s(law, inside[0]) + beyond * 0.00047)
    if read <= 70 < read + tokens:
        riding += 0.0053
    host_s = 0.047 if read + tokens > (70 if loaded else 40) else 0.033
    on_top = 0.00073 + 0.000017 * batch + 0.000011 * tokens * loaded
    for decode_s, pairs in ((0.02, 100.0), (0.5, 4000.0)):
        together = decode_s + riding + pairs * 0.00000059
        alone = tokens * 0.00047 + pairs * 0.00000059
        found = law.mixed_engine_step_s(draft, when_off, batch, decode_s, tokens, pairs)
        assert found == pytest.approx(max(host_s, together, alone) + on_top, rel=1e-12)
        one_host = msgspec.structs.replace(law, mixed_eager_host_s=None)
        found = one_host.mixed_engine_step_s(draft, when_off, batch, decode_s, tokens, pairs)
        assert found == pytest.approx(max(0.033, together, alone) + on_top, rel=1e-12)
        untold = msgspec.structs.replace(law, mixed_host_s=None)
        found = untold.mixed_engine_step_s(draft, when_off, batch, decode_s, tokens, pairs)
        assert found == pytest.approx(max(together, alone + 0.0043) + on_top, rel=1e-12)


def test_graphs_without_speculation_are_those_of_all_where_nothing_else_is_known() -> None:
    law = msgspec.structs.replace(LAW, plain_graph_tokens=None)
    for tokens, past in ((70, False), (71, True)):
        assert law.past_graphs(tokens, OFF, "not_configured") == past
        assert LAW.past_graphs(tokens, OFF, "k0") == past
        assert LAW.past_graphs(tokens, chain(1), "not_configured") == past
    assert [LAW.past_graphs(tokens, OFF, "not_configured") for tokens in (40, 41)] == [False, True]
    none = msgspec.structs.replace(LAW, graph_tokens=None, plain_graph_tokens=None)
    assert not none.past_graphs(1e9, OFF, "not_configured")


def test_a_loaded_drafter_reads_prompts_beside_the_target() -> None:
    assert LAW.drafter_reads_s(OFF, "not_configured", 300) == 0.0
    for draft, when_off in ((OFF, "k0"), (chain(2), "not_configured"), (chain(2), "k0")):
        assert LAW.drafter_reads_s(draft, when_off, 300) == pytest.approx(300 * 0.000011)  # type: ignore[arg-type]


def test_experts_come_on_top() -> None:
    term = ExpertTerm(count=32, per_token=4, read_s=0.02)
    law = msgspec.structs.replace(LAW, experts=term)
    for x in (1.0, 9.0, 100.0):
        woken = 1 - (1 - 4 / 32) ** x
        assert float(law.target_s(x)) == pytest.approx(target_s(LAW, x) + 0.02 * woken, rel=1e-9)
    more = 0.02 * ((1 - 4 / 32) ** 9 - (1 - 4 / 32) ** 29)
    plain = LAW.mixed_engine_step_s(OFF, "k0", 9, 0.5, 20, 0.0)
    assert law.mixed_engine_step_s(OFF, "k0", 9, 0.5, 20, 0.0) == pytest.approx(plain + more, rel=1e-9)


def test_what_factors_scale() -> None:
    """The target's step, the KV term and the drafter's passes each by its own; prefill by none of them."""
    law = msgspec.structs.replace(LAW, experts=ExpertTerm(count=32, per_token=4, read_s=0.02))
    scaled = law.scaled(1.7, 2.3, 3.1)
    by = {
        1.7: ("floor_s", "eager_s"),
        2.3: ("request_s", "kv_s_per_token", "kv_s_per_verified_token"),
        3.1: ("off_s", "off_s_per_request", "draft_s", "draft_pass_s", "draft_pass_s_per_request",
              "draft_s_per_token", "draft_prefill_s_per_token"),
        3.1 / 1.7: ("draft_target_share",),
        1.0: ("prefill_chunk_s", "prefill_s_per_token", "prefill_s_per_pair", "mixed_s", "mixed_host_s",
              "mixed_token_share", "drafter_kv_share", "mixed_s_per_request", "mixed_eager_host_s"),
    }  # fmt: skip
    for factor, names in by.items():
        for name in names:
            assert getattr(scaled, name) == pytest.approx(getattr(law, name) * factor, rel=1e-12), name
    assert scaled.slopes_s_per_token == pytest.approx([slope * 1.7 for slope in law.slopes_s_per_token])
    assert scaled.experts is not None
    assert scaled.experts.read_s == pytest.approx(0.02 * 1.7)
    twice = law.times(2.0)
    for draft in DRAFTS:
        assert twice.fixed_s(draft, "k0", BATCHES) == pytest.approx(2 * law.fixed_s(draft, "k0", BATCHES))
        kv = law.context_s_per_token(draft, "k0")
        assert twice.context_s_per_token(draft, "k0") == pytest.approx(2 * kv)
    for decode_s, tokens in ((0.02, 20), (0.02, 90), (0.5, 20)):
        once_s = law.mixed_engine_step_s(OFF, "k0", 9, decode_s, tokens, 30.0)
        twice_s = twice.mixed_engine_step_s(OFF, "k0", 9, 2 * decode_s, tokens, 30.0)
        assert twice_s == pytest.approx(2 * once_s)
    assert twice.prefill_s(9, 81, 4) == pytest.approx(2 * law.prefill_s(9, 81, 4))


def test_batches_are_filled_up_to_the_next_graph() -> None:
    assert padded([0, 1, 2, 3, 4, 8, 9], (2, 4, 8)).tolist() == [0, 2, 2, 4, 4, 8, 9]
    assert padded([5, 8], (2, 4, 8)).tolist() == [8, 8]
    assert padded([0, 5], ()).tolist() == [0, 5]
    law = msgspec.structs.replace(LAW, graph_batches=(2, 4, 8))
    assert law.fixed_s(chain(2), "k0", [3, 4]).tolist() == [float(LAW.fixed_s(chain(2), "k0", 4))] * 2


def test_pieces_add_up_to_what_lies_above_the_first_knot() -> None:
    x = np.array([1.0, 3.0, 10.0, 17.0, 40.0, 64.0, 90.0])
    found = pieces(x, (3.0, 17.0, 64.0))
    assert [part.tolist() for part in found] == [
        [0, 0, 7, 14, 14, 14, 14], [0, 0, 0, 0, 23, 47, 47], [0, 0, 0, 0, 0, 0, 26],
    ]  # fmt: skip
    assert without_graph([69, 70, 71], 70.0).tolist() == [False, False, True]
    assert without_graph([1e12], None).tolist() == [False]


def test_defaults_add_nothing() -> None:
    """What older calibrations do not name."""
    needed = (
        "knots_tokens", "floor_s", "slopes_s_per_token", "kv_s_per_token", "drafter_kv_share", "off_s",
        "off_s_per_request", "draft_s", "draft_pass_s", "draft_pass_s_per_request", "graph_tokens", "eager_s",
        "prefill_chunk_s", "prefill_s_per_token", "prefill_s_per_pair",
    )  # fmt: skip
    law = Coefficients(**{name: getattr(LAW, name) for name in needed})
    assert (law.draft_s_per_token, law.kv_s_per_verified_token, law.mixed_s, law.request_s) == (0, 0, 0, 0)
    assert (law.graph_batches, law.experts, law.draft_target_share, law.draft_once) == ((), None, 0, False)
    assert (law.mixed_token_share, law.mixed_host_s, law.mixed_eager_host_s) == (1.0, None, None)
    assert (law.plain_graph_tokens, law.mixed_s_per_request, law.draft_prefill_s_per_token) == (None, 0, 0)


@pytest.mark.parametrize(
    "good",
    [{"knots_tokens": (0.0, 17.0, MOST_TOKENS)}, {"floor_s": 0.0}, {"floor_s": MOST_S},
     {"drafter_kv_share": MOST_SHARE}, {"graph_tokens": None}, {"graph_tokens": MOST_TOKENS},
     {"graph_batches": (0, 1, int(MOST_TOKENS))},
     {"knots_tokens": tuple(map(float, range(MOST_PIECES))), "slopes_s_per_token": (0.1,) * MOST_PIECES},
     {"knots_tokens": (1.0,), "slopes_s_per_token": (0.1,)}],
)  # fmt: skip
def test_the_ends_of_what_a_law_may_be(good: dict[str, Any]) -> None:
    Coefficients(**({name: getattr(LAW, name) for name in LAW.__struct_fields__} | good))


@pytest.mark.parametrize(
    "bad",
    [{"knots_tokens": (-1.0, 17.0, 64.0)}, {"knots_tokens": (3.0, 3.0, 64.0)}, {"knots_tokens": (3.0, 17.0)},
     {"knots_tokens": (3.0, 17.0, 2 * MOST_TOKENS)}, {"knots_tokens": (), "slopes_s_per_token": ()},
     {"slopes_s_per_token": (0.1, -0.1, 0.1)}, {"floor_s": nan}, {"floor_s": inf}, {"floor_s": 1.01 * MOST_S},
     {"floor_s": -1e-9}, {"drafter_kv_share": 1.01 * MOST_SHARE}, {"mixed_token_share": 1.01 * MOST_SHARE},
     {"graph_tokens": 1.01 * MOST_TOKENS}, {"graph_batches": (4, 2)},
     {"knots_tokens": tuple(map(float, range(MOST_PIECES + 1))),
      "slopes_s_per_token": (0.1,) * (MOST_PIECES + 1)}],
)  # fmt: skip
def test_what_a_law_may_not_be(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Coefficients(**({name: getattr(LAW, name) for name in LAW.__struct_fields__} | bad))


def mixed_points(law: Coefficients) -> list[MixedPoint]:
    """Exact points of a law, each once more as held out with nonsense."""
    points = []
    kinds = ((OFF, "not_configured"), (OFF, "k0"), (chain(2), "k0"))
    sizes = ((1, 8, 24), (1, 4, 16, 50, 400), kinds, (False, True))
    for batch, prompt_tokens, (draft, when_off), held_out in product(*sizes):  # type: ignore[call-overload]
        point = MixedPoint(
            when_off=when_off, draft_config=draft, batch=batch, context_tokens=500.0,
            prompt_tokens=prompt_tokens, engine_step_s=1.0, held_out=held_out,
        )  # fmt: skip
        seconds = 9.0 if held_out else predict_mixed_s(law, point)
        points.append(msgspec.structs.replace(point, engine_step_s=seconds))
    return points


@pytest.mark.parametrize(
    "terms",
    [{"mixed_s": 0.0012, "mixed_token_share": 0.5}, {"mixed_host_s": 0.093, "mixed_token_share": 0.5},
     {"mixed_token_share": 1.5}, {"mixed_s_per_request": 0.0004}, {"draft_prefill_s_per_token": 0.00008},
     {"mixed_host_s": 0.093, "mixed_eager_host_s": 0.13},
     {"mixed_s": 0.0012, "mixed_s_per_request": 0.0004, "draft_prefill_s_per_token": 0.00008}],
)  # fmt: skip
def test_engine_steps_that_prefill_beside_a_batch_are_fitted(terms: dict[str, float]) -> None:
    """Each term is found again where it decides, whatever the points held out say.

    A drafter takes at least what one layer of the target does.
    """
    none = {"mixed_s": 0.0, "mixed_s_per_request": 0.0, "mixed_token_share": 1.0,
            "draft_prefill_s_per_token": 0.037 * 0.00047}  # fmt: skip
    bare = msgspec.structs.replace(LAW, **none, mixed_host_s=None, mixed_eager_host_s=None)
    truth = msgspec.structs.replace(bare, **({"mixed_host_s": 0.0} | terms))
    points, graphs = mixed_points(truth), "mixed_eager_host_s" in terms
    fitted = fit_mixed(bare, points, in_graphs=graphs)
    used = [point for point in points if not point.held_out]
    assert np.abs(mixed_errors(fitted, used)).max() < 1e-3
    for name, value in none.items():
        assert getattr(fitted, name) == pytest.approx(terms.get(name, value), rel=2e-3, abs=1e-7), name
    for name in ("mixed_host_s", "mixed_eager_host_s"):
        if name in terms:
            assert getattr(fitted, name) == pytest.approx(terms[name], rel=1e-9)
    assert (fitted.mixed_eager_host_s is None) != graphs
    assert fit_mixed(bare, points[1::2]) == bare, "points held out decide nothing"
