"""The real engine: vLLM 0.32.0 in this process, with K chosen every engine step through its own scheduler.

Theory of operation. vLLM takes a scheduler class. Ours is vLLM's own with tlt.plugin.hooks mixed in:
it writes the K that `step` was given into the plan of each engine step, and reads each engine step's facts
when its outputs come back. The table of K by batch size stays configured, with every K of `drafter.ks` in it,
so that vLLM captures the graphs of each.

On CPU an engine step is one call of the engine: it is planned, run and read, and its drafts are verified in
the next one. On CUDA vLLM plans engine step n + 1 while engine step n runs. Then

- `step(k)` plans the next engine step with k and returns the facts of the one before, so that drafts made
with k
  are verified in the facts of the second step after this one (`lag_engine_steps` = 2; on CPU 1);
- the time of an engine step is that between the returns of two steps, and the first one after the engine was
empty
  begins with its call;
- a request may still take part in the engine step after the one that finished it. That engine step counts it
in `batch`,
  for the GPU computed it, and counts its acceptance too, so that rates stay unbiased;
- what is in flight when the last request finishes is thrown away before the next one is submitted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tlt.plugin.engine_step import EngineStepFacts, RequestDrafts, RequestPrompt
from tlt.plugin.graphs import CompileWatch
from tlt.realrun.config import RealConfig
from tlt.realrun.engine import vllm_compat, vllm_weights
from tlt.realrun.engine.model_files import read_tensors, require_whole
from tlt.realrun.engine.protocol import EngineRequest
from tlt.realrun.engine.vllm_lookup import GroupLookup
from tlt.realrun.engine.vllm_settings import engine_arguments
from tltsched.errors import InputError

WARM_PROMPT_TOKENS = 8
WARM_STEPS = 6  # prefill, two to fill the pipeline, and some that verify


class VllmEngine:
    """A tlt.realrun.engine.protocol.Engine on vLLM.

    Two may live in one process. vLLM takes its process group down when the first is closed, so that the other
    cannot step after that: close them together.

    With workers.tp > 1 the model runs in ranks, processes of their own, and the scheduler stays here. What a
    rank compiles amid engine steps shows in their time alone: none of them is marked `compiled`.
    """

    def __init__(self, llm: Any, config: RealConfig, speculating: bool) -> None:
        """`llm` is a vLLM LLMEngine whose scheduler class has SteppedHooks mixed in."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._llm = llm
        self._params = SamplingParams
        self._final_only = RequestOutputKind.FINAL_ONLY
        self._temperature = config.engine.temperature
        self.max_k = max(config.drafter.ks) if speculating else 0
        self.lag_engine_steps = 2 if config.engine.device == "cuda" else 1
        self.max_context_tokens = config.engine.max_context_tokens
        self.version = vllm_compat.VERSION
        core = llm.engine_core.engine_core
        self._core = core
        self._scheduler = core.scheduler
        self._model = llm.model_config
        self.vocab = int(self._model.get_vocab_size())
        self.chunk_tokens = int(self._scheduler.max_num_scheduled_tokens)
        self.graph_tokens = int(llm.vllm_config.compilation_config.max_cudagraph_capture_size or 0)
        cache = llm.vllm_config.cache_config
        self.block_tokens = int(cache.block_size)
        self.kv_tokens = int(cache.num_gpu_blocks) * self.block_tokens
        # vLLM's scratch memory: the next engine in this process would free it under our graphs.
        self._workspace = _workspace() if config.engine.device == "cuda" else None
        self._watch = CompileWatch()
        self._pending: dict[int, str] = {}  # our id -> vLLM's
        # vLLM's -> ours and the tokens resumed, of all that may still be in an engine step
        self._ids: dict[str, tuple[int, int]] = {}
        self._responses: dict[int, tuple[int, ...]] = {}
        self._returned_s = 0.0
        self._updatable = False
        looks_up = speculating and config.drafter.kind == "ngram" and config.engine.device == "cpu"
        self._lookup = (
            GroupLookup(core.model_executor.driver_worker.worker.model_runner) if looks_up else None
        )

    def warm_up(self, batches: Sequence[int], ks: Sequence[int]) -> None:
        """Run every (batch, K), also while one more prompt is prefilled, on an engine that is empty."""
        for k in sorted(set(ks)):
            for batch in sorted(set(batches)):
                self._warm(batch, k)
        self._responses.clear()

    def _warm(self, batch: int, k: int) -> None:
        tokens = min(WARM_STEPS * (k + 1) + 1, self.max_context_tokens - WARM_PROMPT_TOKENS)
        prompt = tuple(token % self.vocab for token in range(1, WARM_PROMPT_TOKENS + 1))
        requests = [EngineRequest(number, prompt, tokens) for number in range(-batch, 0)]
        for part in (requests[1:], requests[:1]):  # the last one is prefilled while the others decode
            self.submit(part)
            for _ in range(WARM_STEPS // 2):
                if self._pending:
                    self.step(k)
        self.abort_all()

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        """Queue requests; raises InputError for one that does not fit the engine."""
        if not self._pending:
            self._drain()
        for request in requests:
            self._check(request)
            prompt = {"prompt_token_ids": list(request.context)}
            params = self._params(
                max_tokens=request.response_tokens - len(request.resumed),
                ignore_eos=request.forced,
                temperature=self._temperature,
                seed=request.seed,
                detokenize=False,
                output_kind=self._final_only,
                stop_token_ids=[] if request.forced else self._end_tokens(),
            )
            name = self._llm.add_request(str(request.id), prompt, params)
            self._pending[request.id] = name
            self._ids[name] = request.id, len(request.resumed)
            if self._lookup and request.group >= 0:
                self._lookup.join(name, request.group, len(request.prompt_token_ids))

    def step(self, k: int) -> EngineStepFacts:
        """Run one engine step with `k` drafts to be made; `k` is at most `max_k`."""
        if not 0 <= k <= self.max_k:
            raise InputError("K", k, f"0 to {self.max_k}", "add it to drafter.ks")
        scheduler = self._scheduler
        scheduler.next_k = k
        compiled = self._watch.count()
        start_s = self._returned_s if self._core.batch_queue else time.perf_counter()
        outputs: list[Any] = []
        while not scheduler.engine_steps:
            outputs += self._llm.step()
        self._returned_s = time.perf_counter()
        engine_step = scheduler.engine_steps.popleft()
        return EngineStepFacts(
            seconds=self._returned_s - start_s,
            batch=engine_step.batch,
            context_tokens=engine_step.context_tokens,
            prompt_tokens=engine_step.prompt_tokens,
            drafted_tokens=engine_step.drafted_tokens,
            accepted_by_position=engine_step.accepted_by_position,
            finished=self._finish(outputs),
            compiled=self._watch.count() != compiled,
            drafts=tuple([self._drafts(*drafts) for drafts in engine_step.drafts]),
            preempted=engine_step.preempted,
            prompts=tuple([RequestPrompt(self._ids[name][0], *rest) for name, *rest in engine_step.prompts]),
        )

    def _drafts(self, name: str, position: int, drafted: int, accepted: int) -> RequestDrafts:
        number, resumed = self._ids[name]
        return RequestDrafts(number, resumed + position, drafted, accepted)

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

    def withdraw(self, requests: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Take requests that are pending out; returns what each has emitted, `resumed` left out."""
        names = {request: self._pending.pop(request) for request in requests if request in self._pending}
        known = self._scheduler.requests
        emitted = {request: tuple(known[name].output_token_ids) for request, name in names.items()}
        self._llm.abort_request(list(names.values()), internal=True)
        return emitted

    def abort_all(self) -> None:
        """Drop all pending requests, so that the engine is empty."""
        self._llm.abort_request(list(self._pending.values()), internal=True)
        self._pending.clear()
        self._drain()

    def drop_caches(self) -> None:
        """Forget the prompts of earlier requests, as taking new weights does. Nothing may be pending."""
        self._llm.reset_prefix_cache()

    def own_weights(self) -> Mapping[str, Any]:
        """Read the weights of the model folder; raises InputError for one without any."""
        files = sorted(Path(self._model.model).glob("*.safetensors"))
        if not files:
            raise InputError(
                "model.folder", self._model.model, "a folder with weights",
                "leave phases.weight_sync out, or give a model that has weights",
            )  # fmt: skip
        return {name: tensor for file in files for name, tensor in read_tensors(file).items()}

    def load_policy(self, weights: Mapping[str, Any], version: int, kv_kept: bool = False) -> None:
        """Serve these weights; unless `kv_kept`, all caches are dropped.

        Raises RuntimeError while requests are pending whose caches are not kept.
        """
        self._load("start_weight_update", weights, kv_kept)
        if not kv_kept:
            self.drop_caches()
        self._llm.set_weight_version(str(version))
        if self._lookup:
            self._lookup.clear()

    def load_drafter(self, weights: Mapping[str, Any], version: int) -> None:
        """Draft with these weights; raises RuntimeError while requests are pending."""
        del version  # vLLM counts versions of the policy alone
        self._load("start_draft_weight_update", weights)
        self.drop_caches()

    def _load(self, start: str, weights: Mapping[str, Any], amid: bool = False) -> None:
        """Take one update in through vLLM's own path, without a copy through a pipe or a file.

        Ranks of a tensor parallel engine get all of it through vLLM's pipe, and each keeps its part.
        With `amid` it is between two engine steps of what is pending.
        """
        if self._pending and not amid:
            raise RuntimeError(f"{len(self._pending)} requests are pending: weights change between rollouts")
        if not self._pending:
            self._drain()
        call = self._llm.collective_rpc
        if not self._updatable:
            call("init_weight_transfer_engine", kwargs={"init_info": {}})
            self._updatable = True
        call(start)
        call("update_weights", kwargs={"update_info": {"weights": weights}})
        call("finish_weight_update")

    def close(self) -> None:
        """Free the engine's memory. Close all engines of a process together."""
        self._llm.engine_core.shutdown()
        del self._llm, self._core, self._scheduler

    def _check(self, request: EngineRequest) -> None:
        prompt, response = len(request.prompt_token_ids), request.response_tokens
        if len(request.resumed) >= response:
            raise InputError(
                f"request {request.id}", f"{len(request.resumed)} tokens resumed", f"fewer than {response}",
                "a response that is whole is not submitted again",
            )  # fmt: skip
        most = min(self.max_context_tokens, self.kv_tokens)
        if prompt < 1 or response < 1 or prompt + response > most:
            allowed = f"a prompt and a response of together at most {most} tokens"
            fix = "raise engine.max_context_tokens or the KV cache, or shorten the lengths"
            raise InputError(f"request {request.id}", f"{prompt} + {response} tokens", allowed, fix)

    def _finish(self, outputs: list[Any]) -> tuple[int, ...]:
        finished = []
        for output in outputs:
            if output.finished:
                number = int(output.request_id)
                if self._pending.pop(number, None) is not None:
                    self._responses[number] = tuple(output.outputs[0].token_ids)
                    finished.append(number)
        return tuple(finished)

    def _drain(self) -> None:
        """Run out what is in flight for requests that are gone."""
        while self._core.batch_queue or self._scheduler.has_requests():
            self._llm.step()
        self._scheduler.engine_steps.clear()
        self._ids.clear()

    def _end_tokens(self) -> list[int]:
        """Return the tokens that end a response of natural length."""
        end = self._model.try_get_generation_config().get("eos_token_id")
        if end is None:
            end = self._model.hf_config.eos_token_id
        ends = end if isinstance(end, (list, tuple)) else [end]
        return [token for token in ends if token is not None]


def make_engine(config: RealConfig, speculating: bool) -> VllmEngine:
    """Build the engine of a configuration; `speculating` False: with no speculation configured.

    Raises InputError for settings that do not fit together, and for another version of vLLM.
    """
    return VllmEngine(_build(config, speculating), config, speculating)


def _build(config: RealConfig, speculating: bool) -> Any:
    arguments = engine_arguments(config, speculating)
    drafts = arguments.get("speculative_config", {}).get("model")
    for folder in filter(None, (arguments["model"], drafts)):
        require_whole(Path(folder))
    vllm_compat.prepare(config.engine)
    from vllm import EngineArgs
    from vllm.config import WeightTransferConfig
    from vllm.v1.engine.llm_engine import LLMEngine

    from tlt.realrun.engine.vllm_scheduler import SteppedAsyncScheduler, SteppedScheduler

    transfer = WeightTransferConfig(backend=vllm_weights.BACKEND)
    return LLMEngine.from_engine_args(
        EngineArgs(
            **arguments,
            scheduler_cls=SteppedAsyncScheduler if config.engine.device == "cuda" else SteppedScheduler,
            weight_transfer_config=transfer,
        )
    )


def _workspace() -> Any:
    from vllm.v1.worker import workspace

    return workspace._manager
