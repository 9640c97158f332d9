"""An engine with vLLM's scheduler interface as far as the plugin touches it, and no model.

Each engine step prefills what waits, one token of each request that was prefilled, and `accepted` of its
drafts. `run` steps it until it is empty, as a framework would, and may act between the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from tlt.plugin import install
from tlt.plugin.settings import Settings

ACCEPTED = 1


class FakeRequest:
    """A request, with the names that vLLM gives its parts."""

    def __init__(self, name: str, prompt: Sequence[int], tokens: int) -> None:
        self.request_id, self.prompt_token_ids, self.left = name, list(prompt), tokens
        self.num_prompt_tokens, self.num_computed_tokens, self.num_output_tokens = len(prompt), 0, 0
        self.num_preemptions, self.arrival_time, self.reason = 0, 0.0, ""

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    def is_finished(self) -> bool:
        return bool(self.reason)

    def get_finished_reason(self) -> str:
        return self.reason


class FakeScheduler:
    """Stands for vllm.v1.core.sched.scheduler.Scheduler."""

    def __init__(self, k: int = 4, table: list[int] | None = None, **config: Any) -> None:
        self.requests: dict[str, FakeRequest] = {}
        self.running: list[FakeRequest] = []
        self.num_spec_tokens, self.dynamic_sd_lookup = k, table
        self.planned_ks: list[int] = []
        self.vllm_config = fake_config(k, **config)
        self._drafts: dict[str, int] = {}

    def _update_after_schedule(self, plan: Any) -> None:
        self.planned_ks.append(plan.num_spec_tokens_to_schedule)
        for name, tokens in plan.num_scheduled_tokens.items():
            self.requests[name].num_computed_tokens += tokens

    def update_from_output(self, plan: Any, output: Any) -> str:
        for name in plan.num_scheduled_tokens:
            request = self.requests[name]
            gained = len(output.sampled_token_ids[output.req_id_to_index[name]])
            drafted = len(plan.scheduled_spec_decode_tokens.get(name, ()))
            request.num_computed_tokens -= max(drafted + 1 - gained, 0) if request.num_output_tokens else 0
            request.num_output_tokens = min(request.num_output_tokens + gained, request.left)
            if request.num_output_tokens >= request.left:
                request.reason = "length"
                self.running.remove(request)
                del self.requests[name]
            self._drafts[name] = plan.num_spec_tokens_to_schedule
        return "outputs"

    def shutdown(self) -> None:
        """Nothing to free."""

    def step(self) -> None:
        """Plan an engine step, run it, take its outputs."""
        self.running = list(self.requests.values())
        tokens, drafts = {}, {}
        for request in self.running:
            name = request.request_id
            drafted = self._drafts.get(name, 0) if request.num_output_tokens else 0
            tokens[name] = 1 + drafted if request.num_output_tokens else request.num_prompt_tokens
            drafts[name] = [0] * drafted
        plan = SimpleNamespace(
            total_num_scheduled_tokens=sum(tokens.values()), num_scheduled_tokens=tokens,
            scheduled_spec_decode_tokens={name: each for name, each in drafts.items() if each},
            num_spec_tokens_to_schedule=self._own_k(len(tokens)), preempted_req_ids=None,
        )  # fmt: skip
        self._update_after_schedule(plan)
        output = SimpleNamespace(
            req_id_to_index={name: row for row, name in enumerate(tokens)},
            sampled_token_ids=[[7] * (1 + min(ACCEPTED, len(drafts[name]))) for name in tokens],
            cudagraph_stats=None,
        )
        assert self.update_from_output(plan, output) == "outputs"

    def _own_k(self, batch: int) -> int:
        return self.dynamic_sd_lookup[batch] if self.dynamic_sd_lookup else self.num_spec_tokens


def fake_config(k: int, **more: Any) -> SimpleNamespace:
    """Return what the plugin reads of a VllmConfig."""
    drafts = SimpleNamespace(method="ngram", num_speculative_tokens_per_batch_size=more.pop("ranges", None))
    parallel = SimpleNamespace(
        world_size=1, tensor_parallel_size=1, data_parallel_size=more.pop("dp", 1), data_parallel_rank=0
    )
    return SimpleNamespace(
        speculative_config=drafts if k else None, parallel_config=parallel,
        cache_config=SimpleNamespace(num_gpu_blocks=10, block_size=16, enable_prefix_caching=False),
        model_config=SimpleNamespace(model="somewhere/tiny"),
        scheduler_config=SimpleNamespace(max_num_seqs=8, async_scheduling=False),
        compilation_config=SimpleNamespace(cudagraph_mode=SimpleNamespace(name="NONE")),
        additional_config=more.pop("additional_config", {}),
    )  # fmt: skip


def engine(settings: Settings, **fake: Any) -> Any:
    """Return a fake engine with the plugin in it."""
    install._MIXED.pop(FakeScheduler, None)
    return install._mixed(FakeScheduler, settings)(**fake)


def nothing(_step: int) -> None:
    """Let an engine step go by."""


def run(
    scheduler: Any, lengths: Sequence[int], first: int = 0, between: Callable[[int], None] = nothing
) -> None:
    """Generate responses of these lengths, two a prompt; `between` is called before each engine step."""
    for number, tokens in enumerate(lengths, first):
        scheduler.requests[f"r{number}"] = FakeRequest(f"r{number}", [number // 2, 1, 2], tokens)
    step = 0
    while scheduler.requests:
        between(step)
        scheduler.step()
        step += 1
