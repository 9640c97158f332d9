"""What every policy generates: the same lengths and the same prompts, rollout by rollout."""

from __future__ import annotations

import msgspec
import numpy as np

from tlt.realrun.config import RealConfig
from tlt.realrun.engine.protocol import EngineRequest
from tlt.realrun.prompts import make_prompts
from tlt.traces.common.seeds import PROMPTS, generator
from tlt.traces.lengths.generate import generate
from tlt.traces.lengths.schema import KIND_LABELS, Origin, Trace
from tlt.traces.lengths.shipped import load_histogram
from tltsched.errors import InputError

SHORTEST_TOKENS = 2  # the first token comes out of prefill: a response of one is never decoded


class Workload:
    """The requests of all rollouts; ids count from 0 in each."""

    def __init__(self, config: RealConfig) -> None:
        """Draw lengths and prompts from the seed; raises InputError if a request does not fit the engine."""
        trace = _lengths(config)
        rows, origin = trace.rows, trace.origin
        self.rollouts: list[tuple[EngineRequest, ...]] = []
        prompt_tokens = np.zeros(len(rows), np.int32)
        for rollout in range(config.workload.rollouts):
            mine = np.flatnonzero(rows["step"].to_numpy() == rollout)
            lengths = rows["response_tokens"].to_numpy()[mine].tolist()
            rng = generator(config.seed, PROMPTS, rollout)
            prompts = make_prompts(config, len(lengths), rng)
            prompt_tokens[mine] = [len(prompt) for prompt in prompts]
            self.rollouts.append(
                tuple(
                    EngineRequest(index, prompt, length)
                    for index, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
                )
            )
        self.trace = Trace(rows.assign(prompt_tokens=prompt_tokens), origin)
        self._check(config)

    def describe(self) -> str:
        """Return one line that says where the lengths come from."""
        return describe_origin(self.trace.origin)

    def _check(self, config: RealConfig) -> None:
        rows = self.trace.rows
        longest = int((rows["prompt_tokens"] + rows["response_tokens"]).max())
        if longest > config.engine.max_context_tokens:
            raise InputError(
                "engine.max_context_tokens", config.engine.max_context_tokens,
                f"{longest:,} or more, the longest prompt and response drawn",
                "raise it, or lower workload.longest_tokens or workload.max_response_tokens",
            )  # fmt: skip


def describe_origin(origin: Origin) -> str:
    """Return one line: source, kind, note."""
    return " ".join(part for part in (f"{origin.source} ({KIND_LABELS[origin.kind]}).", origin.note) if part)


def _lengths(config: RealConfig) -> Trace:
    workload = config.workload
    trace = generate(
        load_histogram(workload.lengths),
        steps=workload.rollouts,
        prompts_per_step=workload.requests,
        samples_per_prompt=1,
        max_response_tokens=workload.max_response_tokens,
        prompt_tokens=workload.prompt_tokens,
        seed=config.seed,
    )
    lengths = trace.rows["response_tokens"].to_numpy()
    note = trace.origin.note
    factor = workload.longest_tokens / int(lengths.max()) if workload.longest_tokens else 1.0
    if workload.longest_tokens:
        note += f" Scaled by {factor:.4g}, so that the longest is {workload.longest_tokens:,} tokens."
    scaled = np.maximum(np.rint(lengths * factor), SHORTEST_TOKENS).astype(np.int32)
    origin = msgspec.structs.replace(trace.origin, note=note, max_response_tokens=None if factor != 1.0 else
                                     trace.origin.max_response_tokens)  # fmt: skip
    return Trace(trace.rows.assign(response_tokens=scaled), origin)
