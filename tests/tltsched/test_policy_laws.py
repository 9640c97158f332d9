"""What every policy keeps to, whichever rule it follows; and what single rules promise on top."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tltsched.all_policies import POLICIES, TIMES
from tltsched.draft_config import OFF, DraftConfig
from tltsched.policies import POLICIES as KINDS
from tltsched.policies import PRESETS, PolicySpec
from tltsched.policies.base import Batch, Choice, Outcome, Policy
from tltsched.policies.turbospec import TurboSpecConfig
from tltsched.policies.vllm_adaptive import VllmAdaptiveConfig
from tltsched.step_times import DraftConfigTimes, StepTimeTable

# Batch, context of a request, engine steps (cut to what was asked for), acceptance of each further draft.
DECISION_INTERVALS = st.lists(
    st.tuples(st.integers(1, 300), st.integers(0, 40_000), st.integers(1, 200), st.floats(0, 1)),
    min_size=1,
    max_size=25,
)
FALLING = ("fastgrpo", "fastgrpo_chains", "disable_by_batch")
MAX_K = 6


def built(spec: PolicySpec) -> Policy:
    return spec.build(Random(5), TIMES)  # noqa: S311


def outcome(choice: Choice, requests: int, engine_steps: int, rate: float) -> Outcome:
    engine_steps = min(engine_steps, choice.max_engine_steps or engine_steps)
    accepted = tuple(int(engine_steps * requests * rate ** (j + 1)) for j in range(choice.draft_config.depth))
    return Outcome(choice.draft_config, engine_steps, engine_steps * requests, 0.01 * engine_steps, accepted)


def history(policy: Policy, decision_intervals: list[tuple[int, int, int, float]]) -> list[Choice]:
    choices = []
    for number, (requests, context, engine_steps, rate) in enumerate(decision_intervals):
        if number % 9 == 0:
            policy.begin_rollout()
        choice = policy.choose(Batch(requests, requests * context))
        choices.append(choice)
        policy.observe(outcome(choice, requests, engine_steps, rate))
    return choices


def test_every_kind_of_policy_is_among_those_tested() -> None:
    assert {type(spec) for spec in POLICIES} == set(KINDS)


@given(spec=st.sampled_from(POLICIES), decision_intervals=DECISION_INTERVALS)
@settings(max_examples=200, deadline=None)
def test_choices_are_draft_configs_of_the_policy_that_a_driver_can_carry_out(
    spec: PolicySpec, decision_intervals: list[tuple[int, int, int, float]]
) -> None:
    policy = built(spec)
    for choice, (requests, *_) in zip(history(policy, decision_intervals), decision_intervals, strict=True):
        assert choice.draft_config in policy.draft_configs
        assert choice.max_engine_steps is None or choice.max_engine_steps >= 1
        assert 1 <= choice.min_requests <= requests
    assert len(set(policy.draft_configs)) == len(policy.draft_configs)


@given(spec=st.sampled_from(POLICIES), decision_intervals=DECISION_INTERVALS)
@settings(max_examples=100, deadline=None)
def test_the_same_events_give_the_same_choices(
    spec: PolicySpec, decision_intervals: list[tuple[int, int, int, float]]
) -> None:
    assert history(built(spec), decision_intervals) == history(built(spec), decision_intervals)


@given(spec=st.sampled_from(POLICIES), decision_intervals=DECISION_INTERVALS)
@settings(max_examples=100, deadline=None)
def test_a_choice_asked_for_again_is_the_same_unless_it_is_drawn(
    spec: PolicySpec, decision_intervals: list[tuple[int, int, int, float]]
) -> None:
    policy = built(spec)
    history(policy, decision_intervals)
    batch = Batch(decision_intervals[-1][0], 1000)
    if "beg_mab" not in str(spec.__struct_config__.tag) and not hasattr(spec, "inner"):
        assert policy.choose(batch) == policy.choose(batch)


@pytest.mark.parametrize("spec", POLICIES, ids=lambda spec: str(spec.__struct_config__.tag))
def test_decision_intervals_in_which_nothing_was_accepted_are_learned_from(spec: PolicySpec) -> None:
    policy = built(spec)
    for draft_config in policy.draft_configs:
        for accepted in ((0,) * draft_config.depth, ()):
            policy.observe(Outcome(draft_config, 700, 2100, 7.0, accepted))
            assert policy.choose(Batch(3, 3000)).draft_config in policy.draft_configs


@given(name=st.sampled_from(FALLING), requests=st.integers(1, 400))
def test_rules_of_the_batch_alone_never_draft_more_in_a_larger_one(name: str, requests: int) -> None:
    policy = built(PRESETS[name])
    smaller, larger = (policy.choose(Batch(batch, 0)) for batch in (requests, requests + 1))
    assert smaller.draft_config.verify_tokens >= larger.draft_config.verify_tokens
    # The smaller batch ends the decision interval of the larger one exactly where the choice would differ.
    assert (larger.min_requests == requests + 1) == (smaller.draft_config != larger.draft_config)


@given(
    rates=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    requests=st.integers(1, 200),
    slope_s=st.floats(1e-6, 1e-2),
    pass_s=st.floats(0, 1e-2),
)
@settings(max_examples=100, deadline=None)
def test_more_acceptance_never_means_a_shorter_draft(
    rates: tuple[float, float], requests: int, slope_s: float, pass_s: float
) -> None:
    draft_configs = [OFF, *(DraftConfig(k, 1, k + 1) for k in range(1, MAX_K + 1))]
    times = StepTimeTable(
        tuple(
            DraftConfigTimes(
                draft_config,
                (0.01, 0.01 + slope_s * draft_config.verify_tokens + pass_s * draft_config.depth),
                1e-9,
            )
            for draft_config in draft_configs
        )
    )
    for spec in (TurboSpecConfig(max_k=MAX_K), VllmAdaptiveConfig(max_k=MAX_K)):
        depths = []
        for rate in sorted(rates):
            policy = spec.build(Random(0), times)  # noqa: S311
            accepted = tuple(10**12 * rate ** (j + 1) for j in range(MAX_K))
            policy.observe(
                Outcome(draft_configs[-1], 10**9, 10**12, 1e7, tuple(int(count) for count in accepted))
            )
            depths.append(policy.choose(Batch(requests, 2000 * requests)).draft_config.depth)
        assert depths == sorted(depths)
