"""The real engine: vLLM 0.32.0 in this process, with K chosen every cycle through its own scheduler.

Theory of operation. vLLM takes a scheduler class. Ours is vLLM's own with three methods wrapped: it writes the
K that `step` was given into the plan of each cycle, and reads each cycle's facts when its outputs come back.
The table of K by batch size stays configured, with every K of `drafter.ks` in it, so that vLLM captures the
graphs of each.

On CPU a cycle is one call of the engine: it is planned, run and read, and its drafts are verified in the next
one. On CUDA vLLM plans cycle n + 1 while cycle n runs. Then

- `step(k)` plans the next cycle with k and returns the facts of the one before, so that drafts made with k
  are verified in the facts of the second step after this one (`lag_cycles` = 2; on CPU 1);
- the time of a cycle is that between the returns of two steps, and the first one after the engine was empty
  begins with its call;
- a request may still take part in the cycle after the one that finished it. That cycle counts it in `batch`,
  for the GPU computed it, and counts its acceptance too, so that rates stay unbiased;
- what is in flight when the last request finishes is thrown away before the next one is submitted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from realrun import vllm_compat
from realrun.config import RealConfig
from realrun.engine import CycleFacts, EngineRequest
from tltsched.errors import InputError

CHUNK_TOKENS = {"cpu": 2048, "cuda": 8192}  # most tokens that one cycle computes
GIGABYTE = 2**30
# Batches whose graphs are captured; between two of them a batch is padded to the larger one.
GRAPH_BATCHES = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224)
WARM_PROMPT_TOKENS = 8
WARM_STEPS = 6  # prefill, two to fill the pipeline, and some that verify


class Row(msgspec.Struct, gc=False):
    """One request in one planned cycle."""

    request: Any
    scheduled_tokens: int
    drafted_tokens: int
    context_tokens: int  # in its cache when the cycle was planned; drafts in flight counted as accepted
    prefill: bool


class Cycle(msgspec.Struct, gc=False):
    """What came back of one cycle."""

    batch: int
    context_tokens: int
    prompt_tokens: int
    drafted_tokens: int
    accepted_by_position: tuple[int, ...]


class CycleHooks:
    """Mixed into vLLM's scheduler class, before it: K goes in, facts come out."""

    running: list[Any]
    requests: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.next_k = 0
        self.cycles: deque[Cycle] = deque()
        self._planned: deque[list[Row]] = deque()

    def _update_after_schedule(self, plan: Any) -> None:
        """Set K before vLLM reserves room for the drafts of this cycle."""
        plan.num_spec_tokens_to_schedule = self.next_k
        if plan.total_num_scheduled_tokens:
            self._planned.append([self._row(id, tokens, plan) for id, tokens in plan.num_scheduled_tokens.items()])
        super()._update_after_schedule(plan)  # type: ignore[misc]

    def update_from_output(self, plan: Any, output: Any) -> Any:
        """Read the facts of a cycle before vLLM applies its outputs."""
        if plan.total_num_scheduled_tokens:
            self.cycles.append(_cycle(self._planned.popleft(), output))
        return super().update_from_output(plan, output)  # type: ignore[misc]

    def _row(self, id: str, tokens: int, plan: Any) -> Row:  # noqa: A002
        request = self.requests[id]
        drafted = len(plan.scheduled_spec_decode_tokens.get(id, ()))
        before = request.num_computed_tokens
        # A request that was preempted computes its response again: more than one token that is no draft.
        prefill = before < request.num_prompt_tokens or tokens > 1 + drafted
        return Row(request, tokens, drafted, before, prefill)


def _cycle(rows: list[Row], output: Any) -> Cycle:
    context = prompt = drafted = 0
    accepted: list[int] = []
    for row in rows:
        if row.prefill:
            context += row.context_tokens
            prompt += row.scheduled_tokens
            continue
        context += row.request.num_tokens - 1  # all but the newest token are in the cache
        drafted += row.drafted_tokens
        if row.drafted_tokens:
            sampled = output.sampled_token_ids[output.req_id_to_index[row.request.request_id]]
            accepted += [0] * (row.drafted_tokens - len(accepted))
            for position in range(len(sampled) - 1):
                accepted[position] += 1
    return Cycle(len(rows), context, prompt, drafted, tuple(accepted))


class VllmEngine:
    """A realrun.engine.Engine on vLLM.

    Two may live in one process. vLLM takes its process group down when the first is closed, so that the other
    cannot step after that: close them together.
    """

    def __init__(self, config: RealConfig, speculating: bool) -> None:
        """Build the engine; raises InputError if the configuration does not fit, or vLLM is another version."""
        vllm_compat.prepare(config.engine)
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._params = SamplingParams
        self._final_only = RequestOutputKind.FINAL_ONLY
        self._temperature = config.engine.temperature
        self.max_k = max(config.drafter.ks) if speculating else 0
        self.lag_cycles = 2 if config.engine.device == "cuda" else 1
        self.max_context_tokens = config.engine.max_context_tokens
        self.version = vllm_compat.VERSION
        self._llm = _build(config, speculating)
        core = self._llm.engine_core.engine_core
        self._core = core
        self._scheduler = core.scheduler
        self._model = self._llm.model_config
        self.vocab = int(self._model.get_vocab_size())
        self.chunk_tokens = int(self._scheduler.max_num_scheduled_tokens)
        self.graph_tokens = int(self._llm.vllm_config.compilation_config.max_cudagraph_capture_size or 0)
        cache = self._llm.vllm_config.cache_config
        self.kv_tokens = int(cache.num_gpu_blocks) * int(cache.block_size)
        self._workspace = _workspace() if config.engine.device == "cuda" else None
        self._watch = vllm_compat.CompileWatch()
        self._pending: dict[int, str] = {}  # our id -> vLLM's
        self._responses: dict[int, tuple[int, ...]] = {}
        self._returned_s = 0.0

    def warm_up(self, batches: Sequence[int], ks: Sequence[int]) -> None:
        """Run every (batch, K), once alone and once while one more prompt is prefilled; leaves no requests."""
        for k in sorted(set(ks)):
            for batch in sorted(set(batches)):
                tokens = min(WARM_STEPS * (k + 1) + 1, self.max_context_tokens - WARM_PROMPT_TOKENS)
                ids = range(-batch, 0)
                prompt = tuple(token % self.vocab for token in range(1, WARM_PROMPT_TOKENS + 1))
                requests = [EngineRequest(id, prompt, tokens) for id in ids]
                self.submit(requests[1:])
                for late in ([], requests[:1]):
                    self.submit(late)
                    for _ in range(WARM_STEPS // 2):
                        if self._pending:
                            self.step(k)
                self.abort_all()
        self._responses.clear()

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        """Queue requests; raises InputError for one that is longer than `max_context_tokens`."""
        if not self._pending:
            self._drain()
        for request in requests:
            total = len(request.prompt_token_ids) + request.response_tokens
            if total > self.max_context_tokens or request.response_tokens < 1 or not request.prompt_token_ids:
                raise InputError(
                    f"request {request.id}", total, f"prompt and response of 2 to {self.max_context_tokens} tokens",
                    "raise engine.max_context_tokens, or shorten the lengths",
                )  # fmt: skip
            prompt = {"prompt_token_ids": list(request.prompt_token_ids)}
            params = self._params(
                max_tokens=request.response_tokens,
                ignore_eos=request.forced,
                temperature=self._temperature,
                detokenize=False,
                output_kind=self._final_only,
                stop_token_ids=[] if request.forced else self._end_tokens(),
            )
            self._pending[request.id] = self._llm.add_request(str(request.id), prompt, params)

    def step(self, k: int) -> CycleFacts:
        """Run one cycle with `k` drafts to be made; `k` is at most `max_k`."""
        if not 0 <= k <= self.max_k:
            raise InputError("K", k, f"0 to {self.max_k}", "add it to drafter.ks")
        scheduler = self._scheduler
        scheduler.next_k = k
        compiled = self._watch.count()
        start_s = self._returned_s if self._core.batch_queue else time.perf_counter()
        outputs: list[Any] = []
        while not scheduler.cycles:
            outputs += self._llm.step()
        self._returned_s = time.perf_counter()
        cycle = scheduler.cycles.popleft()
        return CycleFacts(
            seconds=self._returned_s - start_s,
            batch=cycle.batch,
            context_tokens=cycle.context_tokens,
            prompt_tokens=cycle.prompt_tokens,
            drafted_tokens=cycle.drafted_tokens,
            accepted_by_position=cycle.accepted_by_position,
            finished=self._finish(outputs),
            compiled=self._watch.count() != compiled,
        )

    def running(self) -> tuple[int, int]:
        """Return (requests in the running batch, their context tokens) as of now."""
        batch = self._scheduler.running
        # While prefilling, what was computed; later all but the newest token, drafts in flight left out.
        return len(batch), sum(min(r.num_computed_tokens, r.num_tokens - 1) for r in batch)

    def pending(self) -> int:
        """Return how many submitted requests are not finished."""
        return len(self._pending)

    def responses(self) -> dict[int, tuple[int, ...]]:
        """Return the token ids of every request finished since the last call, by id."""
        responses, self._responses = self._responses, {}
        return responses

    def abort_all(self) -> None:
        """Drop all pending requests, so that the engine is empty."""
        self._llm.abort_request(list(self._pending.values()), internal=True)
        self._pending.clear()
        self._drain()

    def close(self) -> None:
        """Free the engine's memory. Close all engines of a process together."""
        self._llm.engine_core.shutdown()
        del self._llm, self._core, self._scheduler

    def _finish(self, outputs: list[Any]) -> tuple[int, ...]:
        finished = []
        for output in outputs:
            if output.finished:
                id = int(output.request_id)  # noqa: A001
                if self._pending.pop(id, None) is not None:
                    self._responses[id] = tuple(output.outputs[0].token_ids)
                    finished.append(id)
        return tuple(finished)

    def _drain(self) -> None:
        """Run out what is in flight for requests that are gone."""
        while self._core.batch_queue or self._scheduler.has_requests():
            self._llm.step()
        self._scheduler.cycles.clear()

    def _end_tokens(self) -> list[int]:
        """Return the tokens that end a response of natural length."""
        end = self._model.try_get_generation_config().get("eos_token_id", self._model.hf_config.eos_token_id)
        return list(end) if isinstance(end, (list, tuple)) else [end]


def make_engine(config: RealConfig, speculating: bool) -> VllmEngine:
    """Build the engine of a configuration; `speculating` False: with no speculation configured."""
    return VllmEngine(config, speculating)


def _build(config: RealConfig, speculating: bool) -> Any:
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    engine = config.engine
    arguments: dict[str, Any] = {
        "model": config.model.folder,
        "skip_tokenizer_init": True,
        "dtype": config.model.dtype,
        "load_format": "dummy" if config.model.random_weights else "auto",
        # Room for the drafts of the last cycle, so that no batch is cut at the end of its longest request.
        "max_model_len": engine.max_context_tokens + max(config.drafter.ks) + 1,
        "max_num_seqs": engine.max_running,
        "max_num_batched_tokens": max(CHUNK_TOKENS[engine.device], engine.max_running),
        "enforce_eager": engine.eager,
        "enable_prefix_caching": False,  # the same prompt again must cost the same again
        "disable_log_stats": True,
        "seed": config.seed,
        "scheduler_cls": _scheduler_class(engine.device),
    }
    if engine.device == "cuda":
        arguments["gpu_memory_utilization"] = engine.memory_fraction
        arguments["async_scheduling"] = True
        if not engine.eager:
            arguments["cudagraph_capture_sizes"] = graph_sizes(config, speculating)
    else:
        arguments["kv_cache_memory_bytes"] = int(engine.kv_gigabytes * GIGABYTE)
    if speculating:
        arguments["speculative_config"] = speculation(config)
    return LLMEngine.from_engine_args(EngineArgs(**arguments))


def _scheduler_class(device: str) -> type:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    return type("HookedScheduler", (CycleHooks, AsyncScheduler if device == "cuda" else Scheduler), {})


def _workspace() -> Any:
    """Return vLLM's scratch memory, which a second engine in this process would free under our graphs."""
    from vllm.v1.worker import workspace

    return workspace._manager


def graph_sizes(config: RealConfig, speculating: bool) -> list[int]:
    """Return the token counts to capture graphs of: every graph batch with every K.

    vLLM's own choice ends at 512 tokens, so that K = 4 at batch 128 would run without graphs.
    """
    largest = config.engine.max_running
    batches = [*(batch for batch in GRAPH_BATCHES if batch < largest), largest]
    ks = config.drafter.ks if speculating else (0,)
    most = CHUNK_TOKENS["cuda"]
    return sorted({batch * (k + 1) for batch in batches for k in (0, *ks) if batch * (k + 1) <= most})


def speculation(config: RealConfig) -> dict[str, Any]:
    """Return vLLM's speculative_config; raises InputError for a drafter that this device or folder lacks."""
    drafter, cuda = config.drafter, config.engine.device == "cuda"
    largest = max(drafter.ks)
    settings: dict[str, Any] = {
        "method": drafter.kind,
        "num_speculative_tokens": largest,
        "num_speculative_tokens_per_batch_size": k_table(drafter.ks, config.engine.max_running),
    }
    if drafter.kind in ("eagle3", "draft_model"):
        settings |= _draft_weights(config)
    elif drafter.kind == "ngram":
        settings |= {"method": "ngram_gpu" if cuda else "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    elif cuda:
        raise InputError("drafter.kind", drafter.kind, "eagle3, ngram, draft_model on cuda", "or run on cpu")
    if drafter.synthetic_survival:
        settings["rejection_sample_method"] = "synthetic"
        settings["synthetic_acceptance_rates"] = _survival(drafter.synthetic_survival, largest)
    return settings


def k_table(ks: Sequence[int], max_running: int) -> list[tuple[int, int, int]]:
    """Return ranges (first batch, last batch, K) that name every K once; only the names matter, step sets K."""
    distinct = sorted(set(ks))
    if not distinct or distinct[0] < 0 or distinct[-1] < 1 or len(distinct) > max_running:
        allowed = f"1 to {max_running} (engine.max_running) distinct values, the largest at least 1"
        raise InputError("drafter.ks", tuple(ks), allowed, "correct the list")
    last = len(distinct)
    return [(i, max_running if i == last else i, k) for i, k in enumerate(distinct, start=1)]


def _draft_weights(config: RealConfig) -> dict[str, Any]:
    drafter = config.drafter
    if not drafter.folder:
        raise InputError("drafter.folder", "", "a folder with drafter weights", "write one with `tlt real model`")
    if drafter.kind == "eagle3" and drafter.random_weights:
        # vLLM gives a head that was filled with dummy weights the output layer of its target.
        fix = "a head of random weights from `tlt real model` is loaded like any other"
        raise InputError("drafter.random_weights", True, "false with eagle3", fix)
    settings: dict[str, Any] = {
        "model": drafter.folder,
        "draft_load_config": {"load_format": "dummy" if drafter.random_weights else "auto"},
    }
    if config.engine.temperature > 0 and not drafter.synthetic_survival:
        settings["draft_sample_method"] = "probabilistic"  # sampled text accepts more of a sampled draft
    return settings


def _survival(rates: tuple[float, ...], largest: int) -> list[float]:
    given = list(rates[:largest])
    if len(given) < largest or any(b > a for a, b in zip(given, given[1:], strict=False)) or not all(
        0 <= rate <= 1 for rate in given
    ):  # fmt: skip
        allowed = f"{largest} or more rates of 0 to 1 that do not rise, one a position"
        raise InputError("drafter.synthetic_survival", rates, allowed, "correct the list")
    return given
