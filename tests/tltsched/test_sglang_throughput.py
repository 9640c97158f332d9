"""SGLang's throughput score: windows, extrapolation, cost lookup and margin, worked out by hand."""

from __future__ import annotations

from random import Random

import pytest

from tltsched.draft_config import DraftConfig, chain
from tltsched.errors import InputError
from tltsched.policies.base import Batch, Choice, Outcome
from tltsched.policies.sglang_throughput import SglangThroughputConfig, SglangThroughputPolicy
from tltsched.step_times import DraftConfigTimes, StepTimeTable

# Seconds of K in batches 0, 1, 2, ...: 10 + K in a batch of 1, and (K + 1) more for each further request.
TIMES = StepTimeTable(
    tuple(
        DraftConfigTimes(chain(k), (10.0, 10.0 + k, 11.0 + 2 * k, 12.0 + 3 * k, 13.0 + 4 * k))
        for k in (1, 3, 5, 7)
    )
)


def policy(**settings: object) -> SglangThroughputPolicy:
    config = SglangThroughputConfig(**settings)  # type: ignore[arg-type]
    return config.build(Random(0), TIMES)  # noqa: S311


def ran(draft_config: DraftConfig, rates: tuple[float, ...], engine_steps: int = 10) -> Outcome:
    return Outcome(
        draft_config,
        engine_steps,
        engine_steps * 1000,
        1.0,
        tuple(round(rate * engine_steps * 1000) for rate in rates),
    )


def after(throughput: SglangThroughputPolicy, rates: tuple[float, ...], requests: int = 1) -> int:
    """Fill the windows with two intervals of these rates; return the K of the decision that follows."""
    for _ in range(2):
        choice = throughput.choose(Batch(requests, 0))
        throughput.observe(ran(choice.draft_config, rates[: choice.draft_config.depth]))
    return throughput.choose(Batch(requests, 0)).draft_config.depth


def test_it_decides_every_ten_engine_steps_once_the_windows_are_full() -> None:
    throughput = policy()
    assert throughput.choose(Batch(1, 0)) == Choice(chain(3), 10, 1)
    throughput.observe(ran(chain(3), (0.9, 0.9, 0.9), engine_steps=4))
    assert throughput.choose(Batch(1, 0)) == Choice(chain(3), 6, 1)
    throughput.observe(ran(chain(3), (0.9, 0.9, 0.9), engine_steps=6))
    assert throughput.choose(Batch(1, 0)) == Choice(chain(3), 10, 1)  # ten of twenty: no decision yet
    throughput.observe(ran(chain(3), (0.9, 0.9, 0.9)))
    assert throughput.choose(Batch(1, 0)) == Choice(chain(7), 10, 1)


def test_positions_without_data_go_on_geometrically() -> None:
    # p = 0.8, 0.4, 0.2, then (0.2 / 0.8)^(1/2) = 1/2 of the last: 0.1, and (0.1 / 0.8)^(1/3) = 1/2: 0.05, ...
    # tokens: 1.8 at K = 1, 2.4 at 3, 2.55 at 5, 2.5875 at 7; times 11, 13, 15, 17 in a batch of 1
    # scores: 0.1636, 0.1846, 0.17, 0.1522: K = 3 stays
    assert after(policy(switch_margin=0.0), (0.8, 0.4, 0.2)) == 3
    # in a batch of 4: times 17, 25, 33, 41, scores 0.1059, 0.096, ...: K = 1 leads by 10.3 %
    assert after(policy(switch_margin=0.0), (0.8, 0.4, 0.2), requests=4) == 1
    assert after(policy(switch_margin=0.1), (0.8, 0.4, 0.2), requests=4) == 1
    assert after(policy(switch_margin=0.11), (0.8, 0.4, 0.2), requests=4) == 3


def test_with_one_known_position_the_next_is_as_good() -> None:
    # p = 0.5 once, then 0.5 again, and from two known ones (0.5 / 0.5)^1 = 1: flat. E = 1.5, 2.5, 3.5, 4.5
    throughput = policy(initial_k=1, switch_margin=0.0)
    assert after(throughput, (0.5,)) == 7


def test_nothing_accepted_means_the_shortest_draft() -> None:
    throughput = policy(switch_margin=0.0)
    assert after(throughput, (0.0, 0.0, 0.0)) == 1
    assert after(throughput, (0.0,)) == 1


def test_going_down_empties_the_windows_past_it() -> None:
    throughput = policy(switch_margin=0.0, graph_batches=())
    assert after(throughput, (0.8, 0.0, 0.0), requests=4) == 1
    # Positions 1 and 2 are known no more: E(3) = 1 + 3 * 0.8 = 3.4 over 13 beats 1.8 over 11 in a batch of 1.
    assert after(throughput, (0.8,)) == 7


def test_a_batch_costs_what_the_next_captured_one_does() -> None:
    # In a batch of 4, K = 1 leads by 10.3 % (above); a batch of 2 alone: times 13, 17: 0.1385 < 0.1412
    for graphs, k in (((1, 2, 4), 3), ((1, 4), 1), ((), 3)):
        assert after(policy(switch_margin=0.0, graph_batches=graphs), (0.8, 0.4, 0.2), requests=2) == k
    # Past the largest capture the cost of the largest is taken.
    assert after(policy(switch_margin=0.0, graph_batches=(1,)), (0.8, 0.4, 0.2), requests=4) == 3


def test_the_profile_has_its_own_context() -> None:
    rows = tuple(DraftConfigTimes(chain(k), (1.0 + k,), 0.1 * k) for k in (1, 3, 5, 7))
    for context, k in ((0, 1), (4096, 1)):
        config = SglangThroughputConfig(profile_context_tokens=context, switch_margin=0.0)
        throughput = config.build(Random(0), StepTimeTable(rows))  # noqa: S311
        assert after(throughput, (0.2, 0.1, 0.0)) == k
        scored = [throughput.choose(Batch(1, tokens)).draft_config for tokens in (0, 10**6)]
        assert scored[0] == scored[1], "the running context plays no part"


def test_a_slot_without_the_draft_length_in_use_changes_it_at_once() -> None:
    throughput = policy(candidates=((1, (1, 3, 5, 7)), (4, (1, 5))))
    assert throughput.choose(Batch(2, 0)) == Choice(chain(3), 10, 1)
    assert throughput.choose(Batch(4, 0)) == Choice(chain(5), 10, 4)  # no data: the middle one
    assert throughput.choose(Batch(2, 0)) == Choice(chain(5), 10, 1)


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("candidates", {"candidates": ()}),
        ("candidates of batch 1", {"candidates": ((1, (0, 1)),)}),
        ("graph_batches", {"graph_batches": (0, 2)}),
        ("window", {"window": 0}),
        ("update_interval", {"update_interval": 0}),
        ("switch_margin", {"switch_margin": float("nan")}),
        ("profile_context_tokens", {"profile_context_tokens": -1}),
    ],
)
def test_settings_that_cannot_be_are_named(field: str, settings: dict[str, object]) -> None:
    with pytest.raises(InputError, match=f"for {field}"):
        policy(**settings)
