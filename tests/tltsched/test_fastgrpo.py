"""FastGRPO: what a batch leaves to verify, and the draft configuration that fits it."""

from __future__ import annotations

from random import Random

import pytest

from tltsched.draft_config import OFF
from tltsched.errors import InputError
from tltsched.policies.base import Batch, Choice
from tltsched.policies.fastgrpo import FastGrpoConfig, FastGrpoPolicy
from tltsched.written.draft_config import parse_draft_config


def policy(*draft_configs: str, capacity: int = 256, alpha: float = 1.0) -> FastGrpoPolicy:
    config = FastGrpoConfig(draft_configs=draft_configs, capacity_tokens=capacity, alpha=alpha)
    return config.build(Random(0), None)  # noqa: S311


@pytest.mark.parametrize(
    ("requests", "draft_config", "lowest"),
    [
        (1, "6_8_64", 1),  # 256 tokens: 64 <= 256, 2^6 <= 256
        (4, "6_8_64", 1),  # 64 tokens, depth 6
        (5, "4_8_16", 5),  # 51 tokens: 64 does not fit
        (16, "4_8_16", 5),  # 16 tokens, depth 4
        (17, "2_2_4", 17),
        (64, "2_2_4", 17),
        (65, "off", 65),
        (500, "off", 65),
    ],
)
def test_the_widest_tree_that_fits_holds_down_to_where_a_wider_one_does(
    requests: int, draft_config: str, lowest: int
) -> None:
    choice = policy("2_2_4", "6_8_64", "4_8_16").choose(Batch(requests, 10**6))
    assert choice == Choice(parse_draft_config(draft_config), None, lowest)


@pytest.mark.parametrize(("alpha", "largest"), [(1.0, 4), (2.0, 2), (4.0, 1)])
def test_the_depth_is_bounded_too(alpha: float, largest: int) -> None:
    # 64 * alpha * batch <= 256: width 16 alone would fit up to a batch of 16
    draft_config = policy("6_8_16", alpha=alpha)
    assert draft_config.choose(Batch(largest, 0)).draft_config == parse_draft_config("6_8_16")
    assert draft_config.choose(Batch(largest + 1, 0)) == Choice(OFF, None, largest + 1)


def test_of_two_as_wide_the_deeper_one_goes_first() -> None:
    trees = policy("4_8_16", "6_8_16")
    assert [trees.choose(Batch(requests, 0)) for requests in (4, 5)] == [
        Choice(parse_draft_config("6_8_16"), None, 1),
        Choice(parse_draft_config("4_8_16"), None, 5),
    ]


def test_chains_are_bounded_by_depth() -> None:
    # depth <= log2(256 / batch): 8 alone, 4 at up to 16, 2 at up to 64, 1 at up to 128
    chains = policy("1", "2", "4", "8")
    assert [
        chains.choose(Batch(requests, 0)).draft_config.depth for requests in (1, 2, 16, 17, 64, 65, 128, 129)
    ] == [
        *(8, 4, 4, 2, 2, 1, 1, 0),
    ]


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("draft_configs", {"draft_configs": ()}),
        ("draft_configs", {"draft_configs": ("off", "4")}),
        ("draft_configs", {"draft_configs": ("4", "4")}),
        ("capacity_tokens", {"draft_configs": ("4",), "capacity_tokens": 0}),
        ("alpha", {"draft_configs": ("4",), "alpha": 0.0}),
    ],
)
def test_settings_that_cannot_be_are_named(field: str, settings: dict[str, object]) -> None:
    with pytest.raises(InputError, match=f"for {field}"):
        FastGrpoConfig(**settings)  # type: ignore[arg-type]
