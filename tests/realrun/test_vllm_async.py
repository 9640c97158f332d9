"""The pipelined engine of CUDA, without a GPU: vLLM's own scheduler and engine loop around a fake model.

An engine is built on CPU; then its scheduler is replaced by the asynchronous one, and its model by one that
answers with made-up tokens. Everything between `step` and the model is what runs on a GPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import astuple

from tests.realrun.small_models import PROMPT_TOKENS, need_vllm, requests, run, tiny_config
from tlt.realrun.config import RealConfig
from tlt.realrun.engine.vllm_engine import VllmEngine, _build

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]

ACCEPTED = 1  # drafts that the fake model accepts, if so many were made


class FakeModel:
    """Stands for vLLM's executor: every request gets its accepted drafts and one token more."""

    supported_tasks = ("generate",)

    def __init__(self) -> None:
        self.planned_ks: list[int] = []
        self._plan: Any = None

    def execute_model(self, plan: Any, non_block: bool) -> Future[Any]:  # noqa: ARG002
        """Take a plan; one without tokens is answered at once."""
        from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT

        self._plan = plan
        if plan.total_num_scheduled_tokens:
            self.planned_ks.append(plan.num_spec_tokens_to_schedule)
        return _done(None if plan.total_num_scheduled_tokens else EMPTY_MODEL_RUNNER_OUTPUT)

    def sample_tokens(self, grammar: Any, non_block: bool) -> Future[Any]:  # noqa: ARG002
        """Answer the plan that was taken."""
        from vllm.v1.outputs import ModelRunnerOutput

        names = list(self._plan.num_scheduled_tokens)
        drafts = self._plan.scheduled_spec_decode_tokens
        return _done(
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: index for index, name in enumerate(names)},
                sampled_token_ids=[[7] * (1 + min(ACCEPTED, len(drafts.get(name, ())))) for name in names],
            )
        )


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


@pytest.fixture
def pipelined(tmp_path: Path) -> Iterator[tuple[VllmEngine, FakeModel]]:
    need_vllm()
    config = tiny_config(tmp_path)
    llm = _build(config, speculating=True)
    core = llm.engine_core.engine_core
    from tlt.realrun.engine.vllm_scheduler import SteppedAsyncScheduler

    plain, executor, model = core.scheduler, core.model_executor, FakeModel()
    core.scheduler = SteppedAsyncScheduler(
        vllm_config=plain.vllm_config,
        kv_cache_config=plain.kv_cache_config,
        structured_output_manager=plain.structured_output_manager,
        block_size=plain.block_size,
    )
    core.batch_queue_size, core.batch_queue = 2, deque(maxlen=2)
    core.async_scheduling, core.step_fn = True, core.step_with_batch_queue
    core.model_executor = model
    engine = VllmEngine(llm, _on_cuda(config), speculating=True)
    yield engine, model
    core.model_executor = executor
    engine.close()


def _on_cuda(config: RealConfig) -> RealConfig:
    import msgspec

    return msgspec.structs.replace(config, engine=msgspec.structs.replace(config.engine, device="cuda"))


def test_facts_come_one_step_late_and_add_up(pipelined: tuple[VllmEngine, FakeModel]) -> None:
    engine, model = pipelined
    lengths = [9, 14, 14]
    facts = run(engine, requests(lengths), (0, 4, 4, 2, 0, 0))
    assert {i: len(tokens) for i, tokens in engine.responses().items()} == dict(enumerate(lengths))
    assert engine.lag_engine_steps == 2
    # The first step plans two engine steps with its K; each later one plans the next.
    assert model.planned_ks[:7] == [0, 0, 4, 4, 2, 0, 0]
    # What step i decides is verified in the facts of step i + 2.
    assert [engine_step.drafted_tokens for engine_step in facts[:6]] == [0, 0, 0, 12, 12, 6]
    assert facts[0].prompt_tokens == 3 * PROMPT_TOKENS
    assert [engine_step.context_tokens for engine_step in facts[1:5]] == [36, 39, 42, 48]
    assert [engine_step.accepted_by_position for engine_step in facts[3:6]] == [
        (3, 0, 0, 0),
        (3, 0, 0, 0),
        (3, 0),
    ]
    assert [i for engine_step in facts for i in engine_step.finished] == [0, 1, 2]
    # One token from prefill and two engine steps without drafts come before the first that verifies some.
    assert [astuple(drafts) for drafts in facts[3].drafts] == [(0, 3, 4, 1), (1, 3, 4, 1), (2, 3, 4, 1)]
    assert [astuple(drafts) for drafts in facts[5].drafts] == [(0, 7, 2, 1), (1, 7, 2, 1), (2, 7, 2, 1)]
    assert all(engine_step.seconds > 0 for engine_step in facts)


def test_a_finished_request_is_counted_in_the_engine_step_in_flight(
    pipelined: tuple[VllmEngine, FakeModel],
) -> None:
    engine, _ = pipelined
    facts = run(engine, requests([7, 40]), (4,))
    # One token from prefill, then two an engine step. That the fourth one ends it is known too late.
    (last,) = [i for i, engine_step in enumerate(facts) if 0 in engine_step.finished]
    assert [engine_step.batch for engine_step in facts[last : last + 3]] == [2, 2, 1]
    decoding = [engine_step for engine_step in facts if engine_step.drafted_tokens]
    assert all(sum(engine_step.accepted_by_position) == engine_step.batch for engine_step in decoding)
    late = next(drafts for drafts in facts[last + 1].drafts if drafts.request == 0)
    assert (late.position, late.accepted) == (7, 1)  # a request counts where the engine step counts it


def test_an_emptied_engine_starts_afresh(pipelined: tuple[VllmEngine, FakeModel]) -> None:
    engine, model = pipelined
    engine.submit(requests([50] * 3))
    engine.step(4)
    engine.step(4)
    assert engine.running() == (3, 3 * (PROMPT_TOKENS + 2))  # all but the newest token
    engine.abort_all()
    assert (engine.pending(), engine.running()) == (0, (0, 0))
    for _ in range(2):  # the second one begins with an engine step of the first still in flight
        facts = run(engine, requests([10] * 2), (2,))
        assert facts[0].prompt_tokens == 2 * PROMPT_TOKENS
        assert {i: len(tokens) for i, tokens in engine.responses().items()} == {0: 10, 1: 10}
    engine.warm_up((1, 4), (0, 2))
    assert {0, 2, 4} == set(model.planned_ks)
    assert engine.pending() == 0
