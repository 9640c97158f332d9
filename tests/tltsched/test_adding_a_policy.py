"""A policy is one file and one line: the example of the documentation, and one that is written here."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest

import tltsched.policies.registry
from tltsched.commands import ResumeCost, SetDraftConfig
from tltsched.draft_config import OFF, DraftConfig, chain
from tltsched.errors import InputError
from tltsched.events import BatchFormed, DecisionEnded, RolloutBegan, RolloutEnded
from tltsched.policies import PolicySpec, parse_policy
from tltsched.policies.base import Batch, Choice, Outcome, PolicyConfig, Rng, StepTimes, WhenOff
from tltsched.policies.disable_by_batch import DisableByBatchConfig
from tltsched.worker import WorkerScheduler

REGISTRY = Path(tltsched.policies.registry.__file__)
GUIDE = REGISTRY.parents[2] / "docs" / "adding-a-policy.md"


class TakeTurnsConfig(PolicyConfig, tag="take_turns", frozen=True):
    """Draft one token in every second decision interval."""

    engine_steps: int = 8

    def build(self, rng: Rng, times: StepTimes | None) -> TakeTurnsPolicy:  # noqa: ARG002
        return TakeTurnsPolicy(self.engine_steps)


class TakeTurnsPolicy:
    def __init__(self, engine_steps: int) -> None:
        self.when_off: WhenOff = "k0"
        self.resume_cost: ResumeCost = "none"
        self.draft_configs: tuple[DraftConfig, ...] = (OFF, chain(1))
        self._engine_steps, self._decision_intervals = engine_steps, 0

    def begin_rollout(self) -> None:
        self._decision_intervals = 0

    def choose(self, batch: Batch) -> Choice:  # noqa: ARG002
        return Choice(self.draft_configs[self._decision_intervals % 2], self._engine_steps)

    def observe(self, outcome: Outcome) -> None:  # noqa: ARG002
        self._decision_intervals += 1


def test_the_guide_shows_the_file_and_the_line_as_they_are() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in guide.split("```python\n")[1:]]
    assert blocks[0] == (REGISTRY.parent / "disable_by_batch.py").read_text(encoding="utf-8")
    registry = REGISTRY.read_text(encoding="utf-8")
    for line in ("    | DisableByBatchConfig\n", '    "disable_by_batch": DisableByBatchConfig(),\n'):
        assert any(line in block for block in blocks[1:])
        assert registry.count(line) == 1


@pytest.mark.parametrize(
    ("requests", "choice"),
    [(1, Choice(chain(4))), (31, Choice(chain(4))), (32, Choice(OFF, None, 32)), (99, Choice(OFF, None, 32))],
)
def test_the_example_drafts_below_its_limit(requests: int, choice: Choice) -> None:
    policy = parse_policy("disable_by_batch").build(Random(0), None)  # noqa: S311
    assert policy.choose(Batch(requests, 0)) == choice


@pytest.mark.parametrize("field", ["k", "limit_requests"])
def test_the_example_refuses_what_cannot_be(field: str) -> None:
    with pytest.raises(InputError, match=f"for {field}"):
        DisableByBatchConfig(**{field: 0})


def test_a_policy_of_ones_own_is_read_from_settings_and_drives_a_worker() -> None:
    spec = msgspec.convert({"kind": "take_turns", "engine_steps": 5}, PolicySpec | TakeTurnsConfig)
    worker = WorkerScheduler(0, spec.build(Random(0), None))  # noqa: S311
    assert worker.handle(RolloutBegan(0.0, 0, 0, 0)) == ()
    (draft,) = worker.handle(BatchFormed(0.0, 0, 3, 300))
    drafts = [draft]
    for number in range(3):
        accepted = (4,) * draft.draft_config.depth
        event = DecisionEnded(1.0 + number, 0, draft.draft_config, 5, 15, 0.5, accepted, (), 3, 300)
        (draft,) = worker.handle(event)
        drafts.append(draft)
    assert drafts == [
        SetDraftConfig(0, draft_config, 5, 1) for draft_config in (OFF, chain(1), OFF, chain(1))
    ]
    assert worker.handle(RolloutEnded(9.0, 0)) == ()
