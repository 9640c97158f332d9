"""A worker's rollout at equal lengths: what lengths did is taken out, what the policy did stays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tlt.analysis.training.equal_lengths import at_equal_lengths

STEPS, WORKERS, RESPONSES = 12, 2, 8


def made(
    seed: int, *, longer: float = 1.0, sooner_s: float = 0.0, faster: float = 1.0, noise_s: float = 0.0
) -> Any:
    """Return a run whose rollouts take 2 ms a token of the longest and 0.1 ms a token, less `sooner_s`.

    All of it is `faster`.
    """
    rng = np.random.default_rng(seed)
    shape = (STEPS, WORKERS, RESPONSES)
    tokens = np.rint(longer * rng.lognormal(5, 0.6, shape)).astype(int)
    seconds = 0.3 + 2e-3 * tokens.max(2) + 1e-4 * tokens.sum(2) - sooner_s
    seconds = seconds / faster + noise_s * rng.standard_normal(seconds.shape)
    start_s = 100.0 * np.arange(STEPS)
    step, worker, _ = (each.ravel() for each in np.indices(shape))
    responses = pd.DataFrame(
        {
            "step": step, "worker": worker, "request": np.arange(tokens.size),
            "response_tokens": tokens.ravel(),
            "finish_s": (start_s[:, None] + seconds)[step, worker],
        }
    )  # fmt: skip
    steps = pd.DataFrame({"step": np.arange(STEPS), "start_s": start_s})
    return SimpleNamespace(run=SimpleNamespace(responses=responses, steps=steps))


def mean_s(run: Any) -> float:
    started = run.run.steps.set_index("step")["start_s"].reindex(run.run.responses["step"]).to_numpy()
    return float((run.run.responses["finish_s"] - started).mean())


@pytest.mark.parametrize("longer", [0.7, 1.0, 1.5])
def test_longer_responses_are_no_slower_policy(longer: float) -> None:
    found = at_equal_lengths(made(1, longer=longer), made(0))
    assert found is not None
    assert found.value == pytest.approx(1.0)


@pytest.mark.parametrize("sooner_s", [-0.1, 0.1, 0.25])
def test_what_the_policy_saves_stays(sooner_s: float) -> None:
    run, baseline = made(1, longer=1.3, sooner_s=sooner_s), made(0)
    found = at_equal_lengths(run, baseline)
    assert found is not None
    both_s = (mean_s(run) + mean_s(baseline)) / 2 + sooner_s / 2  # of the baseline at the lengths of both
    assert found.value == pytest.approx(both_s / (both_s - sooner_s))


@pytest.mark.parametrize("faster", [0.5, 1.2, 3.0])
def test_a_policy_that_is_faster_at_any_length_is_as_much_faster(faster: float) -> None:
    found = at_equal_lengths(made(1, longer=1.3, faster=faster), made(0))
    assert found is not None
    assert found.value == pytest.approx(faster)


def test_its_interval_holds_what_is_so() -> None:
    """Of 100 pairs that differ in nothing but noise and lengths, 95 intervals or nearly so hold 1."""
    held = 0
    for seed in range(100):
        found = at_equal_lengths(made(2 * seed, longer=1.2, noise_s=0.1), made(2 * seed + 1, noise_s=0.1))
        assert found is not None
        assert found.interval is not None
        held += found.interval[0] <= 1.0 <= found.interval[1]
    assert 88 <= held <= 100


def test_lengths_that_are_equal_anyway_need_no_line() -> None:
    assert at_equal_lengths(made(0, faster=2.0), made(0)) is None


def test_nothing_is_said_where_lengths_cannot_be_told_from_the_policy() -> None:
    alike, longer = made(0), made(1)
    for run, tokens in ((alike, 100), (longer, 200)):
        run.run.responses["response_tokens"] = tokens
    assert at_equal_lengths(longer, alike) is None
    one_step = [made(seed) for seed in (0, 1)]
    for run in one_step:
        run.run.responses = run.run.responses.query("step == 0")
        run.run.steps = run.run.steps.query("step == 0")
    assert at_equal_lengths(*one_step) is None
