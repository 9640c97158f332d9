"""Limits of an engine hold for all that it does: CUDA graphs for drafts too, the cache for the cap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.sim.small_world import CHUNK_TOKENS, PLAIN
from tlt.sim import studies
from tlt.sim.config import resolve
from tlt.sim.policy_set import policy_set
from tlt.sim.simulation import coefficients_of
from tlt.sim.steptimes.roofline import drafter_words
from tlt.sim.steptimes.tables import StepCosts
from tlt.traces.runs.runfolder import RunFolder
from tltsched.draft_config import OFF, chain
from tltsched.errors import InputError

EAGER_S, PASS_S = 0.003, 0.002
# the question of a user whose graphs are captured up to batch 2 and who runs 20 requests
SETTINGS: dict[str, Any] = {
    "run": {"records": False, "acceptance": False},
    "hardware": {"gpus": 1, "tp": 1, "gpu": "A100", "model": "Llama-3-8B"},
    "cost": {"source": "roofline"},
    "workload": {"steps": 2, "prompts_per_step": 20, "samples_per_prompt": 1, "max_response_tokens": 128,
                 "prompt_tokens": 1500},
    "acceptance": {"kind": "geometric", "rate": 0.55},
    "phases": {"reward_s": 0.0, "logprob_s": 0.0, "policy_update_s": 0.0, "weight_sync_s": 0.0},
}  # fmt: skip


def test_all_of_an_engine_step_lacks_a_graph_above_the_limit() -> None:
    free = StepCosts(PLAIN, "not_configured", 8, CHUNK_TOKENS, 0, EAGER_S, eager_pass_s=PASS_S)
    limited = StepCosts(PLAIN, "not_configured", 8, CHUNK_TOKENS, 2, EAGER_S, eager_pass_s=PASS_S)
    for draft_config, more in ((OFF, EAGER_S), (chain(3), EAGER_S + 3 * PASS_S)):
        added = limited.of(draft_config).fixed_s - free.of(draft_config).fixed_s
        assert added.tolist() == pytest.approx([0.0] * 3 + [more] * 6)


def gain(folder: Path, **engine: float) -> float:
    path = folder / "lengths.csv"
    path.write_text("response_tokens\n" + "128\n" * 40, encoding="utf-8")
    settings = SETTINGS | {"engine": engine, "workload": SETTINGS["workload"] | {"lengths": str(path)}}
    studies.compare(policy_set(settings, ["none", "static:3"]), folder / "out", 0, studies.silent)
    none, drafted = (
        float(RunFolder(folder / "out" / name).steps()["end_s"].max()) for name in ("none", "static-3")
    )
    return none / drafted


def test_drafting_without_graphs_is_asked_for_and_then_falls_behind(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="eager_s_per_draft_pass"):
        gain(tmp_path, graph_max_requests=2)
    whole = gain(tmp_path)
    assert gain(tmp_path, graph_max_requests=2, eager_s_per_draft_pass=0.005) < whole
    assert gain(tmp_path, graph_max_requests=32) == pytest.approx(whole)


def test_a_cache_that_holds_no_response_at_its_cap_is_refused_however_short_responses_are(
    tmp_path: Path,
) -> None:
    """A 32B model on one H100 leaves 17,069 tokens of cache: with a cap of 32,768 no engine starts."""
    path = tmp_path / "lengths.csv"
    path.write_text("response_tokens\n" + "128\n" * 40, encoding="utf-8")
    settings = SETTINGS | {
        "hardware": {"gpus": 1, "tp": 1, "gpu": "H100", "model": "Qwen2.5-32B"},
        "workload": SETTINGS["workload"]
        | {"lengths": str(path), "max_response_tokens": 32_768, "prompt_tokens": 1024},
    }
    with pytest.raises(InputError, match="at least 33,792"):
        policy_set(settings, ["none"])
    fits = settings | {"workload": settings["workload"] | {"max_response_tokens": 16_000}}
    assert policy_set(fits, ["none"]).baseline.limits.kv_tokens == pytest.approx(17_069, abs=1)


@pytest.mark.parametrize(
    ("vocabulary", "best"),
    [(128_256, 2), (32_000, 3)],  # published for an 8B model with a head of its own vocabulary: 2 before 4
)
def test_what_to_draft_hangs_on_the_drafters_head(vocabulary: int, best: int) -> None:
    """One request on one H100; survival falls from 0.33 at the second draft to 0.12 at the third."""
    survival = [0.56, 0.33, 0.12, 0.07]
    config = resolve(
        {
            "hardware": {"gpus": 1, "tp": 1, "gpu": "H100", "model": "Llama-3-8B"},
            "cost": {"source": "roofline", "roofline": {"draft_vocab": vocabulary}},
            "acceptance": {"kind": "per_position", "survival_by_position": survival, "request_spread": 0.0},
        },
        "static:4",
    )
    law = coefficients_of(config, None)
    tokens = {depth: 1 + sum(survival[:depth]) for depth in (1, 2, 3, 4)}
    rates = {depth: tokens[depth] / float(law.fixed_s(chain(depth), "k0", 1.0)) for depth in tokens}
    assert max(rates, key=rates.__getitem__) == best
    assert f"a head of {vocabulary:,} rows" in drafter_words(config.cost.roofline, trees=False)


def test_drafts_of_another_engine_fall_behind_with_tensor_parallelism() -> None:
    """Published for 32B in SGLang: a gain at TP 1, none at TP 4, where the plain step is a third as long."""
    gains = {}
    for tp in (1, 4):
        config = resolve(
            {
                "hardware": {"gpus": tp, "tp": tp, "gpu": "A100", "model": "Qwen2.5-32B"},
                "cost": {"source": "roofline", "roofline": {"drafting": "sglang_trees"}},
                "workload": {"max_response_tokens": 2048},
                "acceptance": {"kind": "geometric", "rate": 0.42},
            },
            "static:3",
        )
        law = coefficients_of(config, None)
        plain_s, cycle_s = (float(law.fixed_s(each, "not_configured", 1.0)) for each in (OFF, chain(3)))
        gains[tp] = (1 + 0.42 + 0.42**2 + 0.42**3) * plain_s / cycle_s
    assert gains[4] < 0.85 * gains[1]
    assert gains[4] < 1.2
