"""Jump mode against exact mode, its oracle, on single engines. All seeds are fixed."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.small_world import ENGINES, PLAIN, Drive, costs, drive, no_drafts, submission
from tlt.sim.acceptance.laws import AcceptanceLaw, Geometric, PerPosition, PublishedTree
from tlt.sim.acceptance.process import Acceptance
from tlt.sim.model.engines.engine import Engine
from tlt.sim.model.engines.jump_engine import shared_out
from tlt.sim.model.engines.running_batch import Limits, RequestPool
from tlt.traces.common.arrays import Floats
from tltsched.commands import SetDraftConfig
from tltsched.draft_config import OFF, DraftConfig, chain

# An engine step takes 1 s whatever the batch and the context, so finish times count engine steps.
CLOCK = msgspec.structs.replace(
    PLAIN, floor_s=1.0, slopes_s_per_token=(0.0, 0.0), kv_s_per_token=0.0, draft_s=0.0, draft_pass_s=0.0,
    draft_pass_s_per_request=0.0,
)  # fmt: skip
LAW = Geometric(0.7)
TREE = DraftConfig(8, 8, 48)


def keep(draft_config: DraftConfig) -> Callable[[int], SetDraftConfig]:
    return lambda _: SetDraftConfig(0, draft_config, None, 1)


def alternate(first: DraftConfig, second: DraftConfig, engine_steps: int) -> Callable[[int], SetDraftConfig]:
    return lambda decision_interval: SetDraftConfig(
        0, second if decision_interval % 2 else first, engine_steps, 1
    )


def engine_steps_of(
    mode: str, length: int, count: int, law: AcceptanceLaw, choose: Callable[[int], SetDraftConfig], seed: int
) -> Floats:
    """Return the engine steps that each of `count` equal requests took, all running at once."""
    pool = RequestPool(submission([length] * count), Limits(count, 1e12, False))
    told = drive(mode, pool, law, choose, seed, step_costs=costs(count, CLOCK))
    assert sorted(told.finish_s) == list(range(count))
    return np.array([told.finish_s[request] for request in range(count)])


def run(
    mode: str, lengths: list[int], limits: Limits, choose: Callable[[int], SetDraftConfig], seed: int = 0
) -> Drive:
    return drive(mode, RequestPool(submission(lengths), limits), LAW, choose, seed)


@pytest.mark.slow
@given(
    lengths=st.lists(st.integers(1, 120), min_size=1, max_size=20),
    max_running=st.integers(1, 8),
    min_requests=st.integers(1, 3),
    max_engine_steps=st.sampled_from([None, 1, 7]),
)
@settings(max_examples=60, deadline=None)
def test_without_drafts_both_modes_give_the_same_times(
    lengths: list[int], max_running: int, min_requests: int, max_engine_steps: int | None
) -> None:
    limits = Limits(max_running, 1e9, False)
    told = []
    for mode in ("jump", "exact"):
        pool = RequestPool(submission(lengths), limits)

        def choose(decision_interval: int, pool: RequestPool = pool) -> SetDraftConfig:
            return SetDraftConfig(0, OFF, max_engine_steps, min(min_requests, len(pool.running)))

        told.append(drive(mode, pool, LAW, choose))
    jump, exact = told
    assert jump.seconds == pytest.approx(exact.seconds, rel=1e-9)
    assert (jump.engine_steps, jump.request_steps) == (exact.engine_steps, exact.request_steps)
    assert jump.request_steps == sum(lengths) - len(lengths)  # a prefill emits the first token
    assert jump.finish_s == pytest.approx(exact.finish_s, rel=1e-9)


@pytest.mark.parametrize("length", [2, 3, 4, 6, 11, 31])
def test_short_requests_need_the_engine_steps_that_exact_mode_counts(length: int) -> None:
    jump, exact = (engine_steps_of(mode, length, 6000, LAW, keep(chain(4)), 1) for mode in ("jump", "exact"))
    assert jump.mean() == pytest.approx(exact.mean(), abs=0.13)  # a normal draw instead of a small count
    assert jump.var() == pytest.approx(exact.var(), abs=0.25)
    assert jump.min() >= np.ceil((length - 1) / 5)
    assert jump.max() <= length - 1


@pytest.mark.parametrize(
    ("law", "draft_config"),
    [(LAW, chain(4)), (PublishedTree(), TREE), (PerPosition((0.9, 0.2, 0.1)), chain(3)), (LAW, chain(1))],
)
def test_long_requests_need_the_engine_steps_that_exact_mode_counts(
    law: AcceptanceLaw, draft_config: DraftConfig
) -> None:
    jump, exact = (
        engine_steps_of(mode, 1501, 1500, law, keep(draft_config), 2) for mode in ("jump", "exact")
    )
    error = np.sqrt((jump.var() + exact.var()) / 1500)
    assert jump.mean() == pytest.approx(exact.mean(), abs=5 * error + 0.05)
    assert jump.var() == pytest.approx(exact.var(), rel=0.2)  # five standard errors of a variance


@pytest.mark.parametrize("every", [1, 4, 16])
@pytest.mark.parametrize("length", [21, 101, 401])
def test_draft_configs_that_change_in_mid_request_keep_the_law_of_the_total(every: int, length: int) -> None:
    choose = alternate(chain(2), chain(4), every)
    jump, exact = (engine_steps_of(mode, length, 1500, LAW, choose, 3) for mode in ("jump", "exact"))
    error = np.sqrt((jump.var() + exact.var()) / 1500)
    assert jump.mean() == pytest.approx(exact.mean(), abs=5 * error + 0.2)
    assert jump.var() == pytest.approx(exact.var(), rel=0.25)


@pytest.mark.slow
def test_a_batch_that_drafts_and_shrinks_takes_the_same_time_on_average() -> None:
    lengths = np.random.default_rng(4).integers(50, 1500, 30).tolist()
    limits = Limits(12, 1e9, False)
    seconds = {
        mode: [run(mode, lengths, limits, keep(chain(4)), seed).seconds for seed in range(12)]
        for mode in ("jump", "exact")
    }
    assert np.mean(seconds["jump"]) == pytest.approx(np.mean(seconds["exact"]), rel=0.01)


@given(st.lists(st.tuples(st.floats(-3, 12), st.integers(0, 9)), min_size=1, max_size=20), st.floats(0, 1))
def test_what_is_shared_out_sums_up_and_is_near(rows: list[tuple[float, int]], share: float) -> None:
    wanted, most = np.array([each for each, _ in rows]), np.array([each for _, each in rows])
    total = int(share * most.sum())
    whole = shared_out(wanted, total, most)
    assert whole.sum() == total
    assert ((whole >= 0) & (whole <= most)).all()
    if total == int(np.clip(np.rint(wanted), 0, most).sum()):
        assert np.abs(whole - np.clip(wanted, 0, most)).max() <= 0.5


def test_accepted_drafts_are_counted_alike() -> None:
    rates = {}
    for mode in ("jump", "exact"):
        told = run(mode, [60] * 64, Limits(64, 1e9, False), alternate(chain(4), OFF, 9))
        drafting = run(mode, [60] * 64, Limits(64, 1e9, False), keep(chain(4)))
        assert 0 < told.accepted < drafting.accepted
        rates[mode] = drafting.accepted / drafting.request_steps
    law_mean = sum(0.7**j for j in range(1, 5))
    assert rates["exact"] == pytest.approx(law_mean, rel=0.05)
    assert rates["jump"] == pytest.approx(law_mean, rel=0.05)


@pytest.mark.parametrize("mode", ["jump", "exact"])
@pytest.mark.parametrize("choose", [no_drafts, keep(chain(4)), alternate(chain(2), OFF, 5)])
def test_an_overflowing_cache_preempts_and_everybody_finishes(
    mode: str, choose: Callable[[int], SetDraftConfig]
) -> None:
    lengths = np.random.default_rng(5).integers(1, 400, 40).tolist()
    tight = run(mode, lengths, Limits(40, 3000.0, False), choose)
    assert tight.preemptions > 0
    assert sorted(tight.finish_s) == list(range(40))
    roomy = run(mode, lengths, Limits(40, 1e9, False), choose)
    assert roomy.preemptions == 0
    assert tight.seconds > roomy.seconds


def test_preemption_costs_both_modes_about_the_same() -> None:
    lengths = np.random.default_rng(6).integers(100, 400, 40).tolist()
    limits = Limits(40, 3000.0, False)
    for choose in (no_drafts, keep(chain(4))):
        jump, exact = (
            [run(mode, lengths, limits, choose, seed) for seed in range(4)] for mode in ("jump", "exact")
        )
        seconds = [float(np.mean([told.seconds for told in tolds])) for tolds in (jump, exact)]
        assert seconds[0] == pytest.approx(seconds[1], rel=0.03)
        counts = [float(np.mean([told.preemptions for told in tolds])) for tolds in (jump, exact)]
        assert counts[0] == pytest.approx(counts[1], rel=0.4)


@pytest.mark.parametrize("mode", ["jump", "exact"])
@pytest.mark.parametrize("draft_config", [OFF, chain(4)])
def test_responses_of_one_token_are_done_after_the_prefill(mode: str, draft_config: DraftConfig) -> None:
    told = run(mode, [1, 1, 1], Limits(2, 1e9, False), keep(draft_config))
    assert told.finish_s == {0: 0.0, 1: 0.0, 2: 0.0}
    assert (told.seconds, told.request_steps) == (0.0, 0)
    mixed = run(mode, [1, 5, 1], Limits(1, 1e9, False), keep(draft_config))
    assert sorted(mixed.finish_s) == [0, 1, 2]
    assert mixed.finish_s[0] == 0.0


@pytest.mark.parametrize("mode", ["jump", "exact"])
def test_a_batch_of_one_takes_requests_one_after_the_other(mode: str) -> None:
    lengths = [30, 2, 11]
    told = run(mode, lengths, Limits(1, 1e9, False), no_drafts)
    expected, clock = [], 0.0
    for length in lengths:
        clock += sum(PLAIN.floor_s + PLAIN.kv_s_per_token * (11 + token) for token in range(length - 1))
        expected.append(clock)
    assert [told.finish_s[request] for request in range(3)] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("mode", ["jump", "exact"])
def test_a_long_draft_in_a_full_cache_does_not_stand_still(mode: str) -> None:
    deepest = 31
    told = drive(
        mode,
        RequestPool(submission([300] * 12), Limits(12, 700.0, False, deepest + 1)),
        Geometric(0.99),
        keep(chain(deepest)),
    )
    assert sorted(told.finish_s) == list(range(12))


@pytest.mark.parametrize("kv_kept", [True, False])
@pytest.mark.parametrize("mode", ["jump", "exact", "compiled"])
def test_weights_that_come_in_mid_rollout_change_what_is_accepted_from_then_on(
    mode: str, kv_kept: bool
) -> None:
    """81 tokens: one, 10 times 5 while all drafts are accepted, and 30 times one when none are."""
    kinds = ENGINES | ({"compiled": compiled_engine()} if mode == "compiled" else {})
    engine = kinds[mode](costs(2, CLOCK), Acceptance(Geometric(0.5)), np.random.default_rng(0))
    pool = RequestPool(submission([81, 81]), Limits(2, 1e12, False))
    engine.submit(pool, 1e-9)
    engine.admit()
    engine.prefill_step()
    assert engine.at_once(SetDraftConfig(0, chain(4), 10, 1), 0.0) == pytest.approx(10.0)
    engine.reload(1e3, kv_kept)
    while engine.admit() or pool.prefilling:
        engine.prefill_step()
    assert engine.at_once(SetDraftConfig(0, chain(4), None, 1), 0.0) == pytest.approx(30.0)
    assert not pool.pending()


def compiled_engine() -> type[Engine]:
    """Return the engine over compiled code, or skip the test where it cannot be had."""
    pytest.importorskip("numba")
    from tlt.sim.model.engines.compiled.engine import CompiledJumpEngine

    return CompiledJumpEngine
