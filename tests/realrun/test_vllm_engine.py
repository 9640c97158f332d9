"""The real engine on a tiny model: forced lengths, K by the engine step, the facts, and losslessness."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

from evidence.lossless_sampling import compare, draw
from tests.realrun.fakes import flat_times
from tests.realrun.small_models import KS, PROMPT_TOKENS, need, need_vllm, requests, run, tiny_config
from tlt.plugin.engine_step import EngineStepFacts
from tlt.realrun.config import RealConfig
from tlt.realrun.engine.protocol import EngineRequest
from tlt.realrun.engine.vllm_engine import VllmEngine, make_engine
from tlt.realrun.workers.worker import Worker
from tlt.traces.common.seeds import scheduler_rng
from tltsched.draft_config import chain
from tltsched.errors import InputError
from tltsched.event_log import (
    RecordedWorker,
    Recorder,
    SchedulerSetup,
    build_worker,
    encode,
    read,
    replay,
)
from tltsched.events import DecisionEnded
from tltsched.policies.goodput import GoodputConfig

# vLLM and torch warn of their own future.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]

LENGTHS = [40, 3, 25, 90, 61, 1]
MIXED_KS = (0, 1, 2, 4, 4, 2, 0, 0)


@contextmanager
def engines(config: RealConfig) -> Iterator[tuple[VllmEngine, VllmEngine]]:
    """Give an engine without speculation and one with it, in this process."""
    plain = make_engine(config, speculating=False)
    speculating = make_engine(config, speculating=True)
    try:
        yield plain, speculating
    finally:
        speculating.close()
        plain.close()


def drafts_add_up(facts: Sequence[EngineStepFacts]) -> None:
    """Demand that drafts by request sum to those of each engine step."""
    for engine_step in facts:
        assert sum(drafts.drafted for drafts in engine_step.drafts) == engine_step.drafted_tokens
        assert sum(drafts.accepted for drafts in engine_step.drafts) == sum(engine_step.accepted_by_position)
        assert all(0 <= drafts.accepted <= drafts.drafted for drafts in engine_step.drafts)


def drafts_fill_responses(facts: Sequence[EngineStepFacts], lengths: Sequence[int]) -> None:
    """Demand that each engine step of a request begins where the one before has ended, up to its length."""
    for request, length in enumerate(lengths):
        mine = [drafts for step in facts for drafts in step.drafts if drafts.request == request]
        assert mine
        for one, after in pairwise(mine):
            assert after.position in (one.position + 1 + one.accepted, length)
        assert length - 1 <= mine[-1].position + mine[-1].accepted


@pytest.mark.parametrize("kind", ["eagle3", "ngram", "draft_model", "suffix"])
def test_greedy_text_and_forced_lengths_are_those_without_speculation(kind: str, tmp_path: Path) -> None:
    need_vllm()
    if kind == "suffix":
        need("arctic_inference")
    with engines(tiny_config(tmp_path, kind)) as (plain, speculating):
        submitted = requests(LENGTHS)
        run(plain, submitted, (0,))
        expected = plain.responses()
        assert [len(expected[i]) for i in range(len(LENGTHS))] == LENGTHS
        speculating.warm_up((1, 4, 6), KS)
        assert (speculating.pending(), speculating.running()) == (0, (0, 0))
        for ks in (MIXED_KS, (4,), (0,)):
            facts = run(speculating, submitted, ks)
            assert speculating.responses() == expected
            assert not any(engine_step.compiled for engine_step in facts)
            drafted = sum(engine_step.drafted_tokens for engine_step in facts)
            assert (drafted > 0) == (ks != (0,))
            drafts_add_up(facts)
            if kind in ("draft_model", "ngram") and ks == (4,):
                assert sum(sum(engine_step.accepted_by_position) for engine_step in facts) > 0


def test_facts_and_refusals(tmp_path: Path) -> None:
    need_vllm()
    config = tiny_config(tmp_path, "draft_model", max_running=4)
    with engines(config) as (plain, speculating):
        facts = run(plain, requests([6] * 5), (0,))
        # Four are prefilled together; the fifth waits for room, and is prefilled alone.
        assert [engine_step.prompt_tokens for engine_step in facts] == [48, 0, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0]
        assert [engine_step.batch for engine_step in facts] == [4] * 6 + [1] * 6
        assert facts[1].context_tokens == 4 * PROMPT_TOKENS
        assert facts[2].context_tokens == 4 * (PROMPT_TOKENS + 1)
        assert facts[5].finished == (0, 1, 2, 3)
        assert all(engine_step.seconds > 0 for engine_step in facts)

        facts = run(speculating, requests([30] * 4), (2, 4))
        # Drafts made in one engine step are verified in the next; the last engine steps have fewer requests.
        assert [engine_step.drafted_tokens for engine_step in facts[1:5]] == [8, 16, 8, 16]
        emitted = sum(
            engine_step.batch * (engine_step.prompt_tokens == 0) + sum(engine_step.accepted_by_position)
            for engine_step in facts
        )
        assert 4 * 29 <= emitted <= 4 * (29 + 4)  # the first tokens come out of prefill; the last overshoot
        assert all(np.diff(engine_step.accepted_by_position).max(initial=0) <= 0 for engine_step in facts)
        drafts_add_up(facts)
        drafts_fill_responses(facts, [30] * 4)

        assert sorted(speculating.responses()) == [0, 1, 2, 3]
        speculating.submit(requests([50] * 2))
        speculating.step(4)
        assert speculating.running() == (2, 2 * PROMPT_TOKENS)
        speculating.abort_all()
        assert (speculating.pending(), speculating.running(), speculating.responses()) == (0, (0, 0), {})

        with pytest.raises(InputError, match=r"got 5 for K; allowed: 0 to 4"):
            speculating.step(5)
        with pytest.raises(InputError, match=r"got '12 \+ 189 tokens' for request 0"):
            speculating.submit(requests([189]))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_synthetic_acceptance_accepts_at_the_given_rates(temperature: float, tmp_path: Path) -> None:
    need_vllm()
    survival = (0.8, 0.6, 0.45, 0.3)
    config = tiny_config(
        tmp_path, survival=survival, temperature=temperature, max_running=32, max_context_tokens=256
    )
    engine = make_engine(config, speculating=True)
    facts = run(engine, requests([240] * 32), (4,))
    engine.close()
    full = [engine_step for engine_step in facts if engine_step.drafted_tokens == 4 * engine_step.batch]
    offers = sum(engine_step.batch for engine_step in full)
    observed = np.sum([engine_step.accepted_by_position for engine_step in full], axis=0) / offers
    # Four standard deviations: one run in thousands falls outside, and the seed is fixed.
    assert offers > 1500
    assert np.abs(observed - survival).max() < 4 * np.sqrt(0.25 / offers)


@pytest.mark.parametrize("kind", ["eagle3", "draft_model"])
def test_sampling_at_temperature_one_is_lossless(kind: str, tmp_path: Path) -> None:
    """evidence/lossless.py does the same with more tokens."""
    need_vllm()
    config = tiny_config(tmp_path, kind, vocab=64, temperature=1.0, max_running=64)
    prompt = tuple(range(1, 9))
    with engines(config) as (plain, speculating):
        one = draw(plain, prompt, 768, 7, (0,), 64)
        other = draw(speculating, prompt, 768, 7, (4, 1, 2), 64)
    assert 0.02 < other.accepted_tokens / other.drafted_tokens < 0.98
    verdict = compare(one.tokens, other.tokens, 64, 400, np.random.default_rng(0))
    assert min(verdict.p_tokens, verdict.p_pairs) > 0.002, verdict


def test_natural_responses_end_at_the_end_token(tmp_path: Path) -> None:
    need_vllm()
    engine = make_engine(tiny_config(tmp_path, vocab=64, temperature=1.0, max_running=32), speculating=False)
    natural = [EngineRequest(i, (1, 2, 3), 150, forced=False) for i in range(32)]
    run(engine, natural, (0,))
    responses = engine.responses()
    engine.close()
    ended = [tokens for tokens in responses.values() if len(tokens) < 150]
    assert ended
    assert all(tokens[-1] == 0 and 0 not in tokens[:-1] for tokens in ended)


def test_goodput_is_told_the_drafts_of_each_request_and_decides_the_same_from_the_records(
    tmp_path: Path,
) -> None:
    need_vllm()
    config = tiny_config(
        tmp_path, survival=(0.8, 0.6, 0.45, 0.3), temperature=1.0, max_running=4, max_context_tokens=256
    )
    spec = GoodputConfig(draft_configs=("1", "2", "4"), decision_engine_steps=8)
    setup = SchedulerSetup(workers=1, policy=spec, step_times=flat_times((chain(1), chain(2), chain(4)), 8))
    lines: list[bytes] = []
    scheduler = build_worker(setup, 0, partial(scheduler_rng, 0))
    engine = make_engine(config, speculating=True)
    worker = Worker(RecordedWorker(scheduler, Recorder(lines.append)), engine, perf_counter, lambda _: None)
    lengths = [40, 200, 90, 150, 120, 60]
    worker.rollout(0, requests(lengths))
    engine.close()
    intervals = [record.body for record in read(lines) if isinstance(record.body, DecisionEnded)]
    told = [row for interval in intervals for row in interval.by_request]
    assert {request for request, *_ in told} == set(range(len(lengths)))
    for interval in intervals:
        assert sum(steps for _, steps, _ in interval.by_request) <= interval.request_steps
        assert sum(row[2] for row in interval.by_request) <= sum(interval.accepted_by_position)
    accepted = sum(sum(interval.accepted_by_position) for interval in intervals)
    # The rest had another number of drafts: of the configuration before, or cut at the end.
    assert 0.7 * accepted < sum(row[2] for row in told) <= accepted
    assert [encode(each) for each in replay(setup, read(lines), partial(scheduler_rng, 0))] == lines
