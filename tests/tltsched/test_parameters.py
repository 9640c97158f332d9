"""Parameters in brackets: every field of every schedule and policy can be written so, and is read back."""

from __future__ import annotations

import msgspec
import pytest

from tltsched.errors import InputError
from tltsched.policies import PRESETS, parse_policy
from tltsched.schedules import PRESETS as SCHEDULES
from tltsched.schedules import parse_schedule
from tltsched.schedules.bounded_async import BoundedAsyncConfig
from tltsched.written.parameters import parameters_text, scalar_fields
from tltsched.written.policy_name import PolicyName


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_written_whole_is_itself(name: str) -> None:
    assert parse_schedule(f"{name}({parameters_text(SCHEDULES[name])})") == SCHEDULES[name]


@pytest.mark.parametrize("name", PRESETS)
def test_a_policy_written_whole_is_itself(name: str) -> None:
    assert parse_policy(f"{name}({parameters_text(PRESETS[name])})") == PRESETS[name]


def test_every_field_with_a_number_a_word_or_a_truth_has_a_name() -> None:
    for spec in (*SCHEDULES.values(), *PRESETS.values()):
        for field in msgspec.structs.fields(type(spec)):
            scalar = isinstance(getattr(spec, field.name), (bool, int, float, str))
            assert (field.name in scalar_fields(spec)) == scalar


def test_parameters_change_what_they_name() -> None:
    spec = parse_schedule("bounded_async(trainer_share=0.5, staleness=2)")
    assert isinstance(spec, BoundedAsyncConfig)
    assert (spec.trainer_share, spec.staleness) == (0.5, 2.0)
    assert parse_schedule("bounded_async:0.5") == parse_schedule("bounded_async(trainer_share=0.5)")
    assert parse_schedule("repack(transfer=true)") != parse_schedule("repack(transfer=false)")
    assert parse_policy("static:4(when_off=drafter_dropped)") != parse_policy("static:4")
    whole = PolicyName.parse("goodput(hysteresis=0.01)@bounded_async(trainer_share=0.5)")
    assert (whole.policy, whole.schedule) == ("goodput(hysteresis=0.01)", "bounded_async(trainer_share=0.5)")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bounded_async(trainer_shar=0.5)", "did you mean 'trainer_share'"),
        ("bounded_async(share=much)", "allowed: staleness, trainer_share, sync_every"),
        ("bounded_async(trainer_share=much)", "got 'much' for trainer_share of bounded_async; allowed: "),
        ("bounded_async(trainer_share=1.5)", "above 0, below 1"),
        ("bounded_async(trainer_share=0.5", "close the bracket"),
        ("bounded_async(0.5)", "give each parameter once and a value"),
        ("bounded_async(staleness=1,staleness=2)", "once"),
        ("synchronous(staleness=1)", "nothing: it has none"),
    ],
)
def test_what_cannot_be_read_says_what_can(text: str, said: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_schedule(text)
    assert said in str(raised.value)
