"""What a run says of everything outside what was measured or published, and that it says nothing inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.sim.small_world import trace_of
from tlt.sim import write_run
from tlt.sim.config import resolve
from tlt.sim.simulation import Simulation
from tlt.sim.write_run import warnings_of

# The calibration: batches to 128, with drafts too, depths 1 to 8, contexts to 8,387 tokens, one H100.
JOB: dict[str, Any] = {
    "hardware": {"gpus": 1, "tp": 1, "gpu": "H100", "model": "Qwen2.5-7B"},
    "cost": {"source": "vllm-0.32-h100-qwen2.5-7b"},
    "acceptance": {
        "kind": "per_position",
        "survival_by_position": [0.5, 0.25, 0.12, 0.06],
        "request_spread": 0.0,
    },
    "run": {"records": False},
    "phases": {"policy_update_s": 1.0},  # one GPU alone has no room for the optimizer of the update
}


def said(policy: str, lengths: list[int], prompt_tokens: int = 10, **sections: Any) -> tuple[str, ...]:
    settings = {name: dict(section) for name, section in JOB.items()}
    for name, section in sections.items():
        settings[name] = section if "kind" in section else settings.get(name, {}) | section
    simulation = Simulation(resolve(settings, policy), trace_of([lengths], prompt_tokens))
    return warnings_of(simulation, simulation.run())


def test_inside_of_what_was_measured_nothing_is_said() -> None:
    assert said("static:4", [100, 200, 300]) == ()


@pytest.mark.parametrize(
    ("policy", "lengths", "sections", "text"),
    [
        ("none", [8_500, 100], {}, "contexts reach 8,510 tokens; the calibration ends at 8,387"),
        ("none", [20] * 300, {}, "batches reach 256; the calibration ends at 128"),
        ("static:2", [20] * 200, {}, "drafting reaches batches of 200; the calibration"),
        ("static:12", [50], {"acceptance": {"survival_by_position": [0.5] * 12}}, "draft depths 12-12 leave"),
        ("static:6", [50], {}, "acceptance of 6 is extrapolated beyond its source"),
        ("none", [50], {"hardware": {"gpu": "H200"}}, "one NVIDIA H100 80GB HBM3, not of H200"),
        ("none", [50], {"hardware": {"model": "Qwen2.5-1.5B"}}, "Qwen2.5-7B with TP 1, not of Qwen2.5-1.5B"),
        ("none", [50], {"hardware": {"gpus": 2, "tp": 2}}, "with TP 1, not of Qwen2.5-7B with TP 2"),
        ("none", [50], {"cost": {"source": "roofline"}}, "step times are assumed: no calibration of this"),
        ("static:2", [50], {"acceptance": {"request_spread": 0.5}}, "how requests differ in acceptance is"),
        ("static:2", [50], {"drafter": {"drift_per_update": 0.1}}, "drafter drift and recovery are assumed"),
    ],
)  # fmt: skip
def test_outside_of_it_each_limit_is_named(
    policy: str, lengths: list[int], sections: dict[str, Any], text: str
) -> None:
    found = said(policy, lengths, **sections)
    assert [warning for warning in found if text in warning], found


def test_what_a_published_calibration_assumes_is_said_with_every_answer() -> None:
    published = {
        "hardware": {"gpus": 4, "tp": 4, "model": "Qwen2.5-32B"}, "cost": {"source": "paper-qwen32b-tp4"},
        "acceptance": {"kind": "published_tree"},
    }  # fmt: skip
    found = said("tlt", [50], **published)
    assert "paper-qwen32b-tp4: assumed: contexts of 4000 tokens in the published batch sweep" in found
    assert any("no drift of the drafter is assumed" in warning for warning in found)  # tlt trains it
    drifting = said("tlt", [50], **published | {"drafter": {"drift_per_update": 0.1}})
    assert not any("no drift of the drafter" in warning for warning in drifting)
    assert not any("drift" in warning for warning in said("static:10_8_16", [50], **published))


def test_a_context_within_a_percent_of_the_end_is_inside() -> None:
    assert said("none", [8_400]) == ()


def test_eager_decode_is_said_to_be_assumed_where_no_calibration_has_it() -> None:
    job = {"cost": {"source": "roofline"}, "engine": {"graph_max_requests": 2}}
    found = said("none", [50, 50, 50], **job)
    assert "a step without a CUDA graph above 2 requests is assumed to cost 0.1 ms a layer more" in found


def test_large_runs_are_recorded_only_if_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_run, "MOST_RECORDED", 3)
    trace = trace_of([[100, 200, 300, 50]], 10)
    for asked, recorded in ((None, False), (True, True), (False, False)):
        settings = JOB | {"run": {} if asked is None else {"records": asked}}
        folder = tmp_path / str(asked)
        summary = write_run.run_into(Simulation(resolve(settings, "none"), trace), folder, "none")
        assert (folder / "records.jsonl").is_file() == recorded
        told = [text for text in summary.warnings if "4 responses are more than the 3" in text]
        assert bool(told) == (asked is None)
