"""A few of the logs that evidence.key_fuzz answers, each with a known truth."""

from __future__ import annotations

from pathlib import Path

import pytest

from evidence.key_fuzz import Answered, answer
from evidence.key_worlds import KINDS, truth_of, world_of
from evidence.recording import HERE, load_all

RANKED = ("plain", "tools, all keys", "generations", "milliseconds a token")
REFUSED = ("asynchronous", "one step off", "rollout in ms", "step in ms", "half, and stated")


@pytest.mark.slow
@pytest.mark.parametrize("kind", RANKED)
def test_the_truth_lies_in_the_interval(kind: str, tmp_path: Path) -> None:
    found = answer(world_of(kind, 3), tmp_path / "world")
    assert found.outcome() == "held"


@pytest.mark.slow
@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_known_is_refused(kind: str, tmp_path: Path) -> None:
    assert answer(world_of(kind, 3), tmp_path / "world").outcome() == "refused"


def test_an_answer_is_held_against_its_truth() -> None:
    world = world_of("plain", 0)
    judged = {gain: Answered(world, gain, (1.2, 1.4)).outcome() for gain in (1.3, 1.19, 1.41, 1.0, 1.6)}
    assert judged == {
        1.3: "held", 1.19: "missed", 1.41: "missed", 1.0: "confidently wrong", 1.6: "confidently wrong",
    }  # fmt: skip
    assert Answered(world_of("asynchronous", 0), 1.3, (1.2, 1.4)).outcome() == "confidently wrong"


def test_waiting_makes_a_gain_smaller() -> None:
    world = world_of("tools, all keys", 3)
    truth = truth_of(world)
    ends = [float((d + w).max()) for d, w in zip(truth.decoding_s, truth.waiting_s, strict=True)]
    assert truth.rollout_s.tolist() == pytest.approx([end + world.overhead_s for end in ends])
    most_s = sum(float(each.max()) for each in truth.decoding_s)
    total_s = float(truth.step_s.sum())
    assert 1.0 < truth.gain < total_s / (total_s - most_s)


def test_the_record_is_of_all_kinds() -> None:
    value = load_all(HERE)["key_fuzz"].value
    assert {f"{kind}: held" for kind in KINDS} <= value.keys()
    assert value["logs"] >= 300
