"""Which drafter serves: what each is known to get accepted decides, with a margin."""

from __future__ import annotations

import pytest

from tltsched.cluster import ClusterScheduler
from tltsched.cluster_config import ClusterConfig
from tltsched.commands import BeginPhase, EndStep, ServeDrafter
from tltsched.drafter_choice import Fallback, FallbackConfig
from tltsched.errors import ProtocolError
from tltsched.events import DraftersMeasured, PhaseEnded, Request, RequestsFinished, StepBegan

ON = FallbackConfig(enabled=True, break_even_length=1.2, margin=0.1)


@pytest.mark.parametrize(
    ("measured", "served"),
    [
        ([(1.1, None)], "model_free"),  # below break-even
        ([(1.3, 1.25)], "model_free"),  # better, but not by the margin
        ([(1.4, 1.25)], "head"),
        ([(1.4, 1.25), (1.3, None)], "head"),  # the other's last length stands
        ([(1.4, 1.25), (1.15, None)], "model_free"),
        ([(1.4, 1.25), (1.3, 1.5)], "model_free"),
        ([(None, 1.5)], "model_free"),
        ([], "model_free"),
    ],
)
def test_the_head_has_to_earn_its_place(
    measured: list[tuple[float | None, float | None]], served: str
) -> None:
    fallback = Fallback(ON)
    for head, model_free in measured:
        fallback.measured(head, model_free)
        fallback.choose()
    assert fallback.choose() == served


def test_without_it_the_head_serves() -> None:
    fallback = Fallback(FallbackConfig())
    fallback.measured(1.0, 5.0)
    assert fallback.choose() == "head"


def test_the_cluster_changes_drafters_where_engines_stand_still() -> None:
    scheduler = ClusterScheduler(1, ClusterConfig(phases=("logprob", "weight_sync"), fallback=ON))
    first = scheduler.handle(StepBegan(0.0, 0, (Request(0, 0, 4),)))
    assert first[0] == ServeDrafter("model_free")
    scheduler.handle(RequestsFinished(1.0, 0, (0,)))
    assert scheduler.handle(DraftersMeasured(2.0, 1.5, 1.1)) == ()
    assert scheduler.handle(PhaseEnded(2.0, "logprob")) == (ServeDrafter("head"), BeginPhase("weight_sync"))
    assert scheduler.handle(PhaseEnded(3.0, "weight_sync")) == (EndStep(0),)
    second = scheduler.handle(StepBegan(3.0, 1, (Request(1, 0, 4),)))
    assert not any(isinstance(command, ServeDrafter) for command in second)
    with pytest.raises(ProtocolError):
        scheduler.handle(DraftersMeasured(4.0, 1.5, 1.1))  # in the rollout nobody knows yet
