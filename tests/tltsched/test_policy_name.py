"""Names of policies: what they are made of, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tltsched.errors import InputError
from tltsched.policies import PRESETS, parse_policy
from tltsched.schedules import PRESETS as SCHEDULES
from tltsched.written.policy_name import DRAFTER_MODES, PolicyName, folded, items_of, policy_of

DRAFT_CONFIGS = st.sampled_from(["off", "1", "4", "8_4_48"])
FORMS = st.lists(DRAFT_CONFIGS, min_size=1, unique=True).map(lambda items: policy_of("goodput", items))
STATIC = DRAFT_CONFIGS.map(lambda draft_config: policy_of("static", [draft_config]))
POLICIES = st.sampled_from(sorted(PRESETS)) | FORMS | STATIC


@given(POLICIES, st.none() | st.sampled_from(sorted(SCHEDULES)), st.sampled_from([None, *DRAFTER_MODES]))
def test_a_name_parses_back(policy: str, schedule: str | None, drafter: str | None) -> None:
    name = PolicyName(policy, schedule, drafter)  # type: ignore[arg-type]
    assert PolicyName.parse(str(name)) == PolicyName.parse(f"  {name} ") == name
    assert str(name.on(None).with_drafter(None)) == policy
    assert parse_policy(policy) == parse_policy(f" {policy} ")
    for columns in (0, 8, 200):
        assert folded(str(name), columns).replace("\n", "") == str(name)


def test_the_parts_of_a_name() -> None:
    name = PolicyName.parse("static:4@tail_batching/frozen")
    assert (name.policy, name.schedule, name.drafter) == ("static:4", "tail_batching", "frozen")
    assert name.form == ("static", "4")
    assert PolicyName.parse("tlt").form == ("tlt", None)
    assert PolicyName.parse("static:").form == ("static", "")
    assert items_of("off+ 1+2") == ("off", "1", "2")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("static:4/froze", ["'froze'", "online, frozen", "did you mean 'frozen'?"]),
        ("static:4/", ["got ''", "online, frozen", "POLICY[@SCHEDULE][/online|/frozen]"]),
        ("static:4/online/frozen", ["'online/frozen'", "online, frozen"]),
        ("tlt@", ["'tlt@'", "name one schedule"]),
        ("tlt@repack@divided", ["'tlt@repack@divided'", "name one schedule"]),
    ],
)
def test_a_name_of_another_form_is_refused(text: str, parts: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        PolicyName.parse(text)
    assert [part for part in parts if part not in str(caught.value)] == []


@pytest.mark.parametrize("text", ["static:4@repack", "tlt/online"])
def test_a_policy_alone_has_no_schedule_and_no_drafter(text: str) -> None:
    with pytest.raises(InputError, match="a policy alone"):
        parse_policy(text)


def test_a_long_name_breaks_where_a_reader_would() -> None:
    assert folded("goodput:off+1+2", 12) == "goodput:\noff+\n1+\n2"
    assert folded("tlt_chains/online", 12) == "tlt_chains\n/online"
    assert folded("tlt_chains@tail_batching", 12) == "tlt_\nchains@\ntail_\nbatching"
    assert folded("static:4@repack on 2 x H100", 0, "@") == "static:4@\nrepack on 2 x H100"
    assert folded("static:", 0) == "static:"
