"""Drafts of each simulated request: by hand, and against what the decision intervals say of all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.sim.small_world import PLAIN, Run, config_of, simulate, trace_of
from tests.sim.test_simulation import CHAINS, SMALL, lengths_of, with_kv_tokens
from tlt.sim.model.draft_counts import MOST_HELD, DraftCounts, Pieces, split
from tlt.sim.model.engines.engine import Engine, PrefillStep
from tlt.sim.simulation import Simulation
from tlt.sim.write_run import run_into
from tlt.traces.runs.request_acceptance import ACCEPTANCE, bins, read_acceptance
from tlt.traces.runs.runfolder import RunFolder
from tltsched.draft_config import DraftConfig, chain
from tltsched.event_log import read
from tltsched.events import DecisionEnded
from tltsched.schedules import PRESETS

MODES = ("jump", "exact")


def piece(config: DraftConfig, request: int, position: int, span: int, tokens: int, steps: int) -> Pieces:
    columns = (np.array([[value]]) for value in (position, span, tokens, steps))
    return Pieces(config, np.array([request]), *columns)


def rows_of(table: pd.DataFrame) -> list[tuple[object, ...]]:
    return list(table.drop(columns="step").itertuples(index=False, name=None))


def test_a_piece_over_three_bins_by_hand() -> None:
    # 60 engine steps of 5 tokens from token 1 on. The last one that begins before 128 is the 26th (126), the
    # last before 256 the 51st (251): 26, 25 and 9 engine steps, 4 drafts accepted in each.
    counts = DraftCounts()
    counts.of(0).add(piece(chain(4), 7, 1, 300, 300, 60))
    counts.of(0).add(piece(chain(4), 8, 500, 10, 12, 5))
    counts.of(0).add(piece(DraftConfig(8, 8, 48), 7, 301, 9, 9, 1))
    table = counts.table([(3, counts.take(np.array([7])))])
    assert set(table["step"]) == {3}
    assert rows_of(table) == [
        (7, 0, "4", 26, 104, 104),
        (7, 128, "4", 25, 100, 100),
        (7, 256, "4", 9, 36, 36),
        (7, 256, "8_8_48", 1, 47, 8),  # a tree of 48 tokens drafts 47
    ]
    counts.forget(np.array([8]))
    assert counts.table([(4, counts.take(np.array([7, 8])))]).empty


@given(
    pieces=st.lists(
        st.tuples(st.integers(0, 40_000), st.integers(1, 3000), st.floats(0, 1), st.integers(0, 8)),
        min_size=1, max_size=8,
    ),
    depth=st.integers(1, 8),
)  # fmt: skip
def test_splitting_keeps_sums_and_bounds(
    pieces: list[tuple[int, int, float, int]], depth: int
) -> None:  # each piece: position, engine steps, share of the drafts accepted, tokens past the end
    position, steps = (np.array([each[i] for each in pieces]) for i in (0, 1))
    tokens = steps + np.array([int(share * depth * n) for _, n, share, _ in pieces])
    span = np.maximum(tokens - np.array([each[3] for each in pieces]), 1)
    ids = np.arange(len(pieces))
    row, number, cell_steps, cell_tokens = split(position, span, tokens, steps)
    for each in ids:
        mine = row == each
        assert cell_steps[mine].sum() == steps[each]
        assert cell_tokens[mine].sum() == tokens[each]
        begins = position[each] + (span[each] * np.arange(steps[each])) // steps[each]
        found, count = np.unique(bins(begins), return_counts=True)
        used = cell_steps[mine] > 0
        assert number[mine][used].tolist() == found.tolist()
        assert cell_steps[mine][used].tolist() == count.tolist()
    assert (cell_tokens >= cell_steps).all()
    assert (cell_tokens <= (depth + 1) * cell_steps).all()


def test_pieces_are_summed_when_there_are_many() -> None:
    counts = DraftCounts()
    for _ in range(3 * MOST_HELD):
        counts.of(0).add(piece(chain(2), 0, 5, 2, 2, 1))
    assert rows_of(counts.table([(0, counts.take(np.array([0])))])) == [
        (0, 0, "2", 3 * MOST_HELD, 6 * MOST_HELD, 3 * MOST_HELD)
    ]


def test_a_stretch_that_goes_on_is_counted_as_far_as_it_has_come() -> None:
    columns = (np.array([[one], [one + 1]]) for one in (1, 5, 5, 3))
    stretch = Pieces(chain(2), np.array([0, 1]), *columns)
    counts = DraftCounts()
    counts.of(0).add_until(stretch, 1)
    assert rows_of(counts.table([(0, counts.take(np.array([0, 1])))])) == [(0, 0, "2", 3, 6, 2)]
    counts.of(0).add(stretch)
    assert rows_of(counts.table([(1, counts.take(np.array([0, 1])))])) == [(1, 0, "2", 4, 8, 2)]


@pytest.mark.parametrize("mode", MODES)
def test_where_all_drafts_are_accepted_both_modes_count_alike(mode: str) -> None:
    chosen = SMALL | {"acceptance.kind": "geometric", "acceptance.rate": 1.0, "run.mode": mode}
    told = simulate(config_of(chosen, "static:4"), trace_of([[301, 6, 1]]))
    # Prefill emits the first token: 60 engine steps, one, and none. The bins are those of a piece above.
    long = [(0, "4", 26, 104, 104), (128, "4", 25, 100, 100), (256, "4", 9, 36, 36)]
    expected = [(0, *row) for row in long] + [(1, 0, "4", 1, 4, 4)]
    assert rows_of(told.cluster.draft_table()) == expected


class PlainSteps:
    """Counts the engine steps without drafts that requests decode in beside a prefill.

    A rollout's first decision comes with its first whole batch. Until then nobody has said how to draft.
    """

    def __init__(self) -> None:
        self.by_step: list[tuple[int, Counter[int]]] = []  # RL step -> engine steps by request
        self._now = Counter[int]()

    def close(self, step: int) -> None:
        """Keep what an RL step had."""
        self.by_step.append((step, self._now))
        self._now = Counter()

    def of(self, key: pd.MultiIndex, ids_stay: bool) -> pd.Series:
        """Return them for each (step, request); `ids_stay`: a request may have had them in earlier steps."""
        at = dict(self.by_step)
        whole = sum((counts for _, counts in self.by_step), Counter[int]())
        found = [(whole if ids_stay else at[step])[request] for step, request in key]
        return pd.Series(found, index=key)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count while it lasts."""
        prefill_step = Engine.prefill_step

        def watched(engine: Engine) -> PrefillStep:
            before = engine.pool.running
            told = prefill_step(engine)
            if told.request_steps and not engine.draft_config.depth:
                kept = np.isin(before, np.concatenate([engine.pool.running, told.finished]))
                self._now.update(engine.pool.requests.ids[before[kept]].tolist())
            return told

        with patch.object(Engine, "prefill_step", watched):
            yield


def drafting(told: Run) -> list[DecisionEnded]:
    bodies = (record.body for record in read(told.records.splitlines()))
    return [body for body in bodies if isinstance(body, DecisionEnded) and body.draft_config.depth]


@given(
    name=st.sampled_from(sorted(PRESETS)),
    policy=st.sampled_from(["static:3", "goodput:off+2+5", "tlt_chains"]),
    seed=st.integers(0, 1000),
    mode=st.sampled_from(MODES),
    spread=st.sampled_from([0.0, 0.5]),
    tight=st.booleans(),
)
@example("oversample_partial", "static:3", 218, "exact", 0.0, True)  # carried on beside others' prefill
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_requests_sum_up_to_their_steps_and_lengths(
    name: str, policy: str, seed: int, mode: str, spread: float, tight: bool
) -> None:
    trace = trace_of(lengths_of(seed, 2, 32, 400), 30, 4)
    chosen = SMALL | CHAINS | {
        "cluster.schedule": name, "run.mode": mode, "run.seed": seed, "acceptance.request_spread": spread,
    }  # fmt: skip
    if tight:
        longest = int(trace.rows["response_tokens"].max()) + 30 + 64
        chosen = with_kv_tokens(chosen, trace, policy, longest * 2.0)
    plain = PlainSteps()
    with plain.watching():
        told = simulate(config_of(chosen, policy), trace, progress=plain.close)
    table, key = told.cluster.draft_table(), ["step", "request"]
    assert not table.duplicated([*key, "from_token", "draft_config"]).any()
    assert (table[["request_steps", "accepted_tokens"]] >= 0).all(axis=None)
    assert (table["accepted_tokens"] <= table["drafted_tokens"]).all()
    sums = table.groupby(key)[["request_steps", "accepted_tokens"]].sum()
    length = told.responses.set_index(key)["response_tokens"]
    assert sums.index.isin(length.index).all()
    emitted = sums.sum(axis=1).reindex(length.index, fill_value=0)
    if policy == "static:3":  # all but the first token; each chunk of "divided" may overshoot its end
        undrafted = plain.of(length.index, ids_stay=not told.cluster.spec.keeps_order)
        assert (emitted + undrafted >= length - 1).all()
        assert (emitted <= length - 1 + 3 * (-(-length // 64) if name == "divided" else 1)).all()
    # Engine steps that prefill draft on, too: the scheduler does not hear of them, the log of steps does.
    steps, accepted = told.steps["request_steps"].sum(), told.steps["accepted_tokens"].sum()
    heard = sum(interval.request_steps for interval in drafting(told))
    assert heard <= steps
    if name in ("synchronous", "longest_first", "divided", "repack"):  # nothing is thrown away
        assert table["request_steps"].sum() == steps
        if mode == "exact":
            assert table["accepted_tokens"].sum() == accepted
    else:
        assert table["request_steps"].sum() <= steps


@pytest.mark.parametrize("max_running", [6, 256])
@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_response_has_all_its_drafts_when_its_step_ends_though_others_go_on(
    name: str, max_running: int
) -> None:
    chosen = (
        SMALL
        | CHAINS
        | {"cluster.schedule": name, "engine.max_running": max_running, "cluster.phases": ["policy_update"]}
    )
    told = simulate(config_of(chosen, "static:3"), trace_of(lengths_of(7, 4, 48, 400), 30, 4))
    key = ["step", "request"]
    sums = told.cluster.draft_table().groupby(key)[["request_steps", "accepted_tokens"]].sum().sum(axis=1)
    length = told.responses.set_index(key)["response_tokens"]
    assert (sums.reindex(length.index, fill_value=0) >= length - 1).all()


def test_jump_mode_sums_are_those_of_its_intervals_but_for_what_it_draws_between_them() -> None:
    """An interval is told the straight line to the end with noise of its own, a request what was drawn at
    each change of drafts.

    The difference has mean 0: within four standard errors over seeds, and small beside the sum in each.
    """
    shares = []
    for seed in range(12):
        chosen = SMALL | CHAINS | {"run.seed": seed, "acceptance.request_spread": 0.5}
        told = simulate(config_of(chosen, "goodput:off+2+5"), trace_of(lengths_of(5, 3, 40, 1500), 30))
        accepted = sum(sum(interval.accepted_by_position) for interval in drafting(told))
        shares.append(told.cluster.draft_table()["accepted_tokens"].sum() / accepted - 1)
    assert abs(np.mean(shares)) < 4 * np.std(shares, ddof=1) / np.sqrt(12) + 0.001
    assert np.abs(shares).max() < 0.02


def test_jump_mode_gives_requests_the_acceptance_that_exact_mode_gives_them() -> None:
    lengths = [[600 + 7 * request for request in range(128)]] * 6
    told, by_bin = {}, {}
    for mode in MODES:
        chosen = SMALL | CHAINS | {"run.mode": mode, "acceptance.request_spread": 0.5}
        table = simulate(config_of(chosen, "static:3"), trace_of(lengths)).cluster.draft_table()
        by_bin[mode] = table.groupby("from_token")[["request_steps", "accepted_tokens"]].sum()
        sums = table.groupby(["step", "request"])[["request_steps", "accepted_tokens"]].sum()
        told[mode] = (sums["accepted_tokens"] / sums["request_steps"]).to_numpy()
    jump, exact = told["jump"], told["exact"]
    # Both draw the same exponents, so most of the spread between requests is the same in both.
    assert len(jump) == len(exact) == 768
    assert jump.mean() == pytest.approx(exact.mean(), rel=0.005)
    assert jump.std() == pytest.approx(exact.std(), rel=0.03)
    assert np.corrcoef(jump, exact)[0, 1] > 0.95
    assert ((by_bin["jump"] / by_bin["exact"] - 1).abs() < 0.01).all(axis=None)


@pytest.mark.parametrize("mode", MODES)
def test_engine_steps_before_the_first_decision_draft_nothing_and_count_as_none(mode: str) -> None:
    chosen = SMALL | CHAINS | {
        "hardware.gpus": 1, "acceptance.rate": 1.0, "run.mode": mode, "engine.chunk_tokens": 32,
        "engine.mixed_prefill": True,
    }  # fmt: skip
    told = simulate(config_of(chosen, "static:4"), trace_of([[13, 6]], prompt_tokens=32))
    # The first prompt fills an engine step, and its last token gives the first of 13. The second prompt gets
    # 31 tokens of the next one and 1 of a third: the first response goes on beside it, by a token each time.
    # Then both draft: 10 tokens and 5, of which each engine step emits 5.
    expected = [(0, 0, "4", 2, 8, 8), (1, 0, "4", 1, 4, 4)]
    assert rows_of(told.cluster.draft_table()) == expected


def test_a_run_folder_has_them_and_one_without_drafts_has_none(tmp_path: Path) -> None:
    trace = trace_of(lengths_of(3, 2, 40, 1500), 30)
    chosen = SMALL | CHAINS | {"run.mode": "exact"}
    run_into(Simulation(config_of(chosen, "tlt_chains"), trace, PLAIN), tmp_path, "tlt_chains")
    rows = read_acceptance(tmp_path)
    assert rows is not None
    counts = ["request_steps", "accepted_tokens"]
    by_step = RunFolder(tmp_path).steps().set_index("step")[counts]
    assert (rows.groupby("step")[counts].sum() == by_step).all(axis=None)
    for policy, wanted in (("none", True), ("tlt_chains", False)):
        config = config_of(chosen | {"run.acceptance": wanted}, policy)
        rows.to_parquet(tmp_path / ACCEPTANCE)  # of an earlier run into the same folder
        run_into(Simulation(config, trace, PLAIN), tmp_path, policy)
        assert read_acceptance(tmp_path) is None


def test_a_tree_deeper_than_the_tokens_it_verifies_has_no_more_accepted_than_drafted() -> None:
    narrow, counts = DraftConfig(8, 4, 8), DraftCounts()  # one of TLT's released trees
    counts.of(0).add(piece(narrow, 5, 0, 36, 36, 4))
    assert rows_of(counts.table([(0, counts.take(np.array([5])))])) == [(5, 0, "8_4_8", 4, 32, 32)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("extra", [{}, {"engine.max_running": 8}, {"acceptance.request_spread": 0.6}])
def test_a_policy_that_asks_is_told_the_drafts_of_each_request(mode: str, extra: dict[str, object]) -> None:
    trace = trace_of(lengths_of(5, 2, 40, 900), 30)
    told = simulate(config_of(SMALL | CHAINS | extra | {"run.mode": mode}, "goodput:off+2+5"), trace)
    decisions = [
        record.body for record in read(told.records.splitlines()) if isinstance(record.body, DecisionEnded)
    ]
    drafted = [decision for decision in decisions if decision.draft_config.depth and decision.engine_steps]
    assert len(drafted) > 10
    for decision in decisions:
        if decision not in drafted:
            assert decision.by_request == ()
            continue
        requests, steps, accepted = zip(*decision.by_request, strict=True)
        assert len(set(requests)) == len(requests)
        # With a queue some finish in an engine step that prefills, of which nobody is told.
        assert set(decision.finished) <= set(requests) or mode == "exact" or "engine.max_running" in extra
        assert sum(steps) == decision.request_steps
        assert all(0 <= a <= decision.draft_config.depth * n for n, a in zip(steps, accepted, strict=True))
        by_position = sum(decision.accepted_by_position)
        if mode == "exact":
            assert sum(accepted) == by_position
        else:  # spread over positions, and over requests, each rounded
            assert abs(sum(accepted) - by_position) <= 1 + decision.draft_config.depth
    for policy in ("goodput_mean:off+2+5", "static:2"):
        silent = simulate(config_of(SMALL | CHAINS | extra | {"run.mode": mode}, policy), trace)
        assert b"by_request" not in silent.records
