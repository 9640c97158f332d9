"""Logged metrics: lengths generated from aggregates, and phase times."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlt.traces.importers.importing import import_trace
from tlt.traces.importers.length_law import Aggregate, draw
from tlt.traces.importers.phases import read_phases
from tlt.traces.importers.reading.items import Options, Skip
from tlt.traces.importers.reading.metric_lines import Metrics
from tlt.traces.importers.reading.metrics import iter_metrics
from tltsched.errors import InputError

LOG = Path(__file__).resolve().parents[2] / "traces" / "importers" / "samples" / "verl_console.log"


def metrics_in(path: Path, text: str) -> list[Metrics | Skip]:
    path.write_text(text)
    return list(iter_metrics(path))


def test_a_console_log_is_read_past_prefixes_colours_and_wrappers() -> None:
    found = [one for one in iter_metrics(LOG) if isinstance(one, Metrics)]
    assert [(one.line, one.step, one.values.get("response_length/mean")) for one in found] == [
        (2, 1, 900.0), (4, 2, 1000.0), (5, 2, None),
    ]  # fmt: skip
    assert found[1].values["timing_s/ref"] == 11.5
    assert found[0].values["actor/loss"] == -0.0013


def test_metrics_as_json_may_be_flat_or_under_data(tmp_path: Path) -> None:
    lines = [
        {"step": 3, "data": {"timing_s/gen": 2.5}}, {"_step": 4, "timing_s/gen": 3},
        {"timing_s/gen": 3}, {"step": -1, "timing_s/gen": 3}, [1],
    ]  # fmt: skip
    found = metrics_in(tmp_path / "m.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    assert [one.step if isinstance(one, Metrics) else None for one in found] == [3, 4, None, None, None]


def test_generated_lengths_keep_mean_longest_and_share_at_the_cap() -> None:
    trace, report = import_trace(LOG, Options())
    first, second = (trace.rows[trace.rows["step"] == step] for step in (1, 2))
    # perf/total_num_tokens over the mean lengths: 64,000 / (900 + 100), 70,400 / (1,000 + 100)
    assert (len(first), len(second)) == (64, 64)
    assert first["response_tokens"].mean() == pytest.approx(900, rel=0.03)
    assert second["response_tokens"].mean() == pytest.approx(1000, rel=0.05)
    assert (first["response_tokens"].max(), second["response_tokens"].max()) == (4096, 3900)
    assert (int(first["truncated"].sum()), int(second["truncated"].sum())) == (4, 0)
    assert (first.loc[first["truncated"], "response_tokens"] == 4096).all()
    assert trace.origin.kind == report.lengths == "generated"


def test_generated_lengths_are_the_same_for_the_same_seed() -> None:
    one, same, other = (import_trace(LOG, Options(seed=seed))[0].rows for seed in (0, 0, 1))
    assert one.equals(same)
    assert not one.equals(other)


@given(
    sigma=st.floats(0.2, 1.6), mu=st.floats(4, 8), cap=st.integers(500, 32_768), count=st.integers(64, 2048)
)
def test_the_law_gives_back_the_mean_of_a_lognormal_batch(
    sigma: float, mu: float, cap: int, count: int
) -> None:
    rng = np.random.default_rng(count)
    real = np.clip(np.rint(rng.lognormal(mu, sigma, count)), 1, cap)
    longest = int(real.max())
    share = float((real >= cap).mean())
    drawn = draw(Aggregate(float(real.mean()), longest, int(real.min()), share, count), rng)
    assert drawn is not None
    assert drawn.tokens.max() == longest
    assert drawn.tokens.min() >= real.min()
    assert int(drawn.truncated.sum()) == round(share * count)
    assert drawn.tokens.mean() == pytest.approx(real.mean(), rel=0.1)


@pytest.mark.parametrize(
    "aggregate",
    [Aggregate(10.0, 1000, 1, 0.5, 100), Aggregate(999.0, 1000, 1, 0.0, 1 << 16)],
)
def test_an_aggregate_that_no_lognormal_has_gives_nothing_or_a_constant(aggregate: Aggregate) -> None:
    drawn = draw(aggregate, np.random.default_rng(0))
    assert drawn is None or drawn.tokens.mean() == pytest.approx(aggregate.mean_tokens, rel=0.02)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("response_length/mean:5 - response_length/max:4", "above response_length/max, or out of range"),
        ("response_length/mean:5 - response_length/max:9 - response_length/clip_ratio:2", "clip_ratio"),
        ("response_length/mean:5 - response_length/max:9 - prompt_length/mean:1 - perf/total_num_tokens:1e30",
         "gives no number of responses"),
        ("response_length/mean:1 - response_length/max:900 - response_length/clip_ratio:0.5", "no lognormal"),
    ],
)  # fmt: skip
def test_metrics_that_cannot_be_are_counted(line: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(f"step:1 - {line}\nstep:2 - response_length/mean:50 - response_length/max:90\n")
    trace, report = import_trace(path, Options(responses=256))
    assert len(trace.rows) == 256
    assert reason in report.skipped[0].reason
    assert report.skipped[0].first == "run.log:1"


def test_phase_times_of_verl_are_summed_by_phase() -> None:
    times = read_phases(LOG)
    assert (times.framework, times.lines, times.steps) == ("verl", 2, [1, 2])
    assert {name: phase.values_s for name, phase in times.phases.items()} == {
        "step": [109.0, 109.0],
        "gen": [36.5, 32.5],
        "reward": [6.0, 6.5],
        "logprob": [23.0, 24.0],
        "policy_update": [40.5, 42.5],
        "weight_sync": [3.0, 3.5],
    }
    assert times.phases["gen"].mean_s == pytest.approx(34.5)
    assert times.phases["gen"].sd_s == pytest.approx(np.std([36.5, 32.5], ddof=1))


@pytest.mark.parametrize(
    ("line", "framework", "phases"),
    [
        ({"step": 1, "timing/train/generation": 4, "timing/train/policy_training": 2,
          "timing/train/weight_sync": 1, "timing/train/prepare_for_generation/total": 1},
         "NeMo-RL", {"gen": 4, "policy_update": 2, "weight_sync": 1}),
        ({"step": 1, "time/step": 9, "time/generate_completions": 5, "time/update_weights": 1},
         "prime-rl", {"step": 9, "weight_sync": 1}),
    ],
)  # fmt: skip
def test_phase_times_of_other_frameworks(
    line: dict[str, float], framework: str, phases: dict[str, float], tmp_path: Path
) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line))
    (tmp_path / "weights.bin").write_bytes(b"\0" * 100)
    times = read_phases(tmp_path)
    assert times.framework == framework
    assert {name: phase.mean_s for name, phase in times.phases.items()} == phases


def test_odd_times_are_counted_and_their_absence_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("step:1 - timing_s/gen:-1 - timing_s/step:5\n")
    times = read_phases(path)
    assert (times.ignored, list(times.phases)) == (1, ["step"])
    path.write_text("step:1 - loss:3\n")
    with pytest.raises(InputError, match="phase times"):
        read_phases(path)
