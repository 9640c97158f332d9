"""Random streams: all come from the registry, under the numbers that results were made with."""

from __future__ import annotations

import ast
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from tlt.traces.common import seeds
from tlt.traces.common.seeds import Stream, generator, sequence

PROJECT = Path(__file__).parents[2]
REGISTRY = PROJECT / "traces/common/seeds.py"
STREAMS = {name: value for name, value in vars(seeds).items() if isinstance(value, Stream)}
# A number that changes changes figures that were published with it.
PREFIXES = {
    "LENGTHS": (), "LOGGED_LENGTHS": (), "CLUSTER": (1,), "COST_FACTORS": (2,), "ADVICE": (3,),
    "SESSIONS": (7,), "BEST_DRAFT_MAP": (4,), "CHOICE": (4,), "EXPORT": (5,),
    "RESAMPLED_PROMPTS": (5, 1), "PROMPTS": (2,), "RESPONSES": (3,), "HEAD_BATCHES": (4,), "PROBLEMS": (4,),
    "WARM_UP_PROBLEMS": (5,), "HELD_OUT_PROBLEMS": (6,),
}  # fmt: skip


def sources() -> list[Path]:
    folders = ("tltsched", "traces", "sim", "realrun", "analysis", "tlt/commands", "evidence", "examples")
    return [path for folder in folders for path in (PROJECT / folder).rglob("*.py")]


def makes_a_key(node: ast.AST) -> bool:
    """Whether a node names SeedSequence or passes a spawn_key."""
    named = isinstance(node, ast.Name | ast.Attribute) and "SeedSequence" in (
        node.id if isinstance(node, ast.Name) else node.attr
    )
    return named or (isinstance(node, ast.keyword) and node.arg == "spawn_key")


def keys_in(path: Path) -> list[int]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [getattr(node, "lineno", 0) for node in ast.walk(tree) if makes_a_key(node)]


def test_every_spawn_key_comes_from_the_registry() -> None:
    assert keys_in(REGISTRY)
    assert len(sources()) > 200
    assert {str(path): keys_in(path) for path in sources() if path != REGISTRY and keys_in(path)} == {}


def test_every_stream_is_drawn_from_by_one_owner_or_says_what() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in sources() if path != REGISTRY)
    assert [name for name in STREAMS if name not in text] == []
    assert all(stream.what for stream in STREAMS.values())


def test_the_numbers_stay() -> None:
    assert {name: stream.prefix for name, stream in STREAMS.items()} == PREFIXES


def test_a_member_draws_what_numpy_draws_under_its_key() -> None:
    expected = np.random.default_rng(np.random.SeedSequence(9, spawn_key=(4, 2, 7))).random(3)
    assert generator(9, seeds.HEAD_BATCHES, 2, 7).random(3).tolist() == expected.tolist()
    assert sequence(9, seeds.LENGTHS, 2).spawn_key == (2,)


@pytest.mark.parametrize(("one", "two"), list(combinations(sorted(set(PREFIXES.values())), 2)))
def test_streams_of_other_numbers_draw_otherwise(one: tuple[int, ...], two: tuple[int, ...]) -> None:
    first, second = (sequence(0, Stream("", prefix), 3).generate_state(4) for prefix in (one, two))
    assert first.tolist() != second.tolist()
