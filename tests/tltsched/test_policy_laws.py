"""What every policy keeps to, whichever rule it follows; and what single rules promise on top."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tltsched.all_policies import POLICIES, TIMES
from tltsched.draft_config import OFF, Arm
from tltsched.policies import POLICIES as KINDS
from tltsched.policies import PRESETS, PolicySpec
from tltsched.policies.base import Batch, Choice, Outcome, Policy
from tltsched.policies.turbospec import TurboSpecConfig
from tltsched.policies.vllm_adaptive import VllmAdaptiveConfig
from tltsched.step_times import ArmTimes, StepTimeTable

# Batch, context of a request, cycles (cut to what was asked for), acceptance of each further draft.
EPOCHS = st.lists(
    st.tuples(st.integers(1, 300), st.integers(0, 40_000), st.integers(1, 200), st.floats(0, 1)),
    min_size=1,
    max_size=25,
)
FALLING = ("fastgrpo", "fastgrpo_chains", "disable_by_batch")
MAX_K = 6


def built(spec: PolicySpec) -> Policy:
    return spec.build(Random(5), TIMES)  # noqa: S311


def outcome(choice: Choice, requests: int, cycles: int, rate: float) -> Outcome:
    cycles = min(cycles, choice.max_cycles or cycles)
    accepted = tuple(int(cycles * requests * rate ** (j + 1)) for j in range(choice.arm.depth))
    return Outcome(choice.arm, cycles, cycles * requests, 0.01 * cycles, accepted)


def history(policy: Policy, epochs: list[tuple[int, int, int, float]]) -> list[Choice]:
    choices = []
    for number, (requests, context, cycles, rate) in enumerate(epochs):
        if number % 9 == 0:
            policy.begin_rollout()
        choice = policy.choose(Batch(requests, requests * context))
        choices.append(choice)
        policy.observe(outcome(choice, requests, cycles, rate))
    return choices


def test_every_kind_of_policy_is_among_those_tested() -> None:
    assert {type(spec) for spec in POLICIES} == set(KINDS)


@given(spec=st.sampled_from(POLICIES), epochs=EPOCHS)
@settings(max_examples=200, deadline=None)
def test_choices_are_arms_of_the_policy_that_a_driver_can_carry_out(
    spec: PolicySpec, epochs: list[tuple[int, int, int, float]]
) -> None:
    policy = built(spec)
    for choice, (requests, *_) in zip(history(policy, epochs), epochs, strict=True):
        assert choice.arm in policy.arms
        assert choice.max_cycles is None or choice.max_cycles >= 1
        assert 1 <= choice.min_requests <= requests
    assert len(set(policy.arms)) == len(policy.arms)


@given(spec=st.sampled_from(POLICIES), epochs=EPOCHS)
@settings(max_examples=100, deadline=None)
def test_the_same_events_give_the_same_choices(
    spec: PolicySpec, epochs: list[tuple[int, int, int, float]]
) -> None:
    assert history(built(spec), epochs) == history(built(spec), epochs)


@given(spec=st.sampled_from(POLICIES), epochs=EPOCHS)
@settings(max_examples=100, deadline=None)
def test_a_choice_asked_for_again_is_the_same_unless_it_is_drawn(
    spec: PolicySpec, epochs: list[tuple[int, int, int, float]]
) -> None:
    policy = built(spec)
    history(policy, epochs)
    batch = Batch(epochs[-1][0], 1000)
    if "beg_mab" not in str(spec.__struct_config__.tag) and not hasattr(spec, "inner"):
        assert policy.choose(batch) == policy.choose(batch)


@pytest.mark.parametrize("spec", POLICIES, ids=lambda spec: str(spec.__struct_config__.tag))
def test_epochs_in_which_nothing_was_accepted_are_learned_from(spec: PolicySpec) -> None:
    policy = built(spec)
    for arm in policy.arms:
        for accepted in ((0,) * arm.depth, ()):
            policy.observe(Outcome(arm, 700, 2100, 7.0, accepted))
            assert policy.choose(Batch(3, 3000)).arm in policy.arms


@given(name=st.sampled_from(FALLING), requests=st.integers(1, 400))
def test_rules_of_the_batch_alone_never_draft_more_in_a_larger_one(name: str, requests: int) -> None:
    policy = built(PRESETS[name])
    smaller, larger = (policy.choose(Batch(batch, 0)) for batch in (requests, requests + 1))
    assert smaller.arm.verify_tokens >= larger.arm.verify_tokens
    # The smaller batch ends the epoch of the larger one exactly where the choice would differ.
    assert (larger.min_requests == requests + 1) == (smaller.arm != larger.arm)


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
    arms = [OFF, *(Arm(k, 1, k + 1) for k in range(1, MAX_K + 1))]
    times = StepTimeTable(
        tuple(
            ArmTimes(arm, (0.01, 0.01 + slope_s * arm.verify_tokens + pass_s * arm.depth), 1e-9)
            for arm in arms
        )
    )
    for spec in (TurboSpecConfig(max_k=MAX_K), VllmAdaptiveConfig(max_k=MAX_K)):
        depths = []
        for rate in sorted(rates):
            policy = spec.build(Random(0), times)  # noqa: S311
            accepted = tuple(10**12 * rate ** (j + 1) for j in range(MAX_K))
            policy.observe(Outcome(arms[-1], 10**9, 10**12, 1e7, tuple(int(count) for count in accepted)))
            depths.append(policy.choose(Batch(requests, 2000 * requests)).arm.depth)
        assert depths == sorted(depths)
