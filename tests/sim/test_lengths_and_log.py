"""A dump that has a part of the responses of its log is refused: a factor on step times would absorb it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tlt.sim.counterfactual.lengths_and_log import notes_on_lengths
from tlt.traces.importers.formats.metrics.stated_lengths import StatedLengths
from tlt.traces.importers.phases import PhaseTimes
from tlt.traces.importers.reading.metric_lines import Metrics
from tlt.traces.lengths.schema import Origin, Trace
from tlt.traces.lengths.validate import to_trace
from tltsched.errors import InputError

STEPS, EACH, MEAN = 3, 40, 1000


def trace(each: int = EACH, mean: float = MEAN, truncated: float = 0.0) -> Trace:
    count = STEPS * each
    rows = pd.DataFrame(
        {
            "step": np.repeat(np.arange(STEPS) + 41, each), "prompt_id": np.arange(count),
            "response_tokens": np.full(count, int(mean)), "prompt_tokens": 10,
            "truncated": np.arange(count) < truncated * count,
        }
    )  # fmt: skip
    return to_trace(rows, Origin(source="dump", kind="rl", max_response_tokens=4096))


def times(responses: float = EACH, mean: float = MEAN, share: float = 0.0, first: int = 41) -> PhaseTimes:
    lengths = StatedLengths(
        steps=[first + step for step in range(STEPS)], responses=[responses] * STEPS,
        mean_tokens=[mean] * STEPS, truncated_share=[share] * STEPS,
    )  # fmt: skip
    return PhaseTimes(source="a log", framework="verl", lengths=lengths)


def test_the_same_responses_need_no_word() -> None:
    assert notes_on_lengths(trace(), times()) == []
    assert notes_on_lengths(trace(), PhaseTimes(source="a log", framework="verl")) == []
    assert notes_on_lengths(trace(), times(responses=-1.0, mean=-1.0, share=-1.0)) == []


def test_a_part_of_the_responses_is_refused() -> None:
    with pytest.raises(InputError, match=r"40 responses a step in the lengths, 8,191 in the log"):
        notes_on_lengths(trace(), times(responses=8191))
    with pytest.raises(InputError, match="1,000 tokens a response in the mean in the lengths, 1,600"):
        notes_on_lengths(trace(), times(mean=1600))


def test_small_differences_are_told() -> None:
    (told,) = notes_on_lengths(trace(), times(responses=44))
    assert told == "40 responses a step in the lengths, 44 in the log"
    (told,) = notes_on_lengths(trace(truncated=0.3), times(share=0.1))
    assert told == "the lengths have 30.0% of the responses cut, the log 10.0%"


def test_other_steps_are_compared_by_their_means() -> None:
    with pytest.raises(InputError, match="responses a step"):
        notes_on_lengths(trace(), times(responses=400, first=1))
    (told,) = notes_on_lengths(trace(), times(mean=1600, first=1))
    assert "tokens a response" in told


def test_what_was_generated_and_dropped_may_be_more() -> None:
    dropping = times(responses=120)
    dropping.rollouts.dropped = "filtered"
    assert notes_on_lengths(trace(), dropping) == ["40 responses a step in the lengths, 120 in the log"]


def test_a_log_of_verl_says_how_many_responses_a_step_has() -> None:
    values = {"response_length/mean": 1000.0, "prompt_length/mean": 24.0, "response_length/clip_ratio": 0.1,
              "perf/total_num_tokens": 8192 * 1024.0}  # fmt: skip
    found = StatedLengths()
    found.add("verl", Metrics(line=1, step=7, values=values, text=""))
    found.add("no such framework", Metrics(line=1, step=8, values=values, text=""))
    assert (found.steps, found.responses, found.mean_tokens, found.truncated_share) == (
        [7], [8192.0], [1000.0], [0.1],
    )  # fmt: skip
