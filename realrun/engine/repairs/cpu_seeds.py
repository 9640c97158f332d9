"""CPU: a seeded request whose prompt takes several engine steps ends the engine."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Leave the generators of unfinished prompts as they were; must run before an engine is built.

    A token is drawn of a prompt that is not finished too, and thrown away. The engine then winds the
    generator of its request back by its offset, which one on the CPU does not have.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    sample, bookkeep = GPUModelRunner._sample, GPUModelRunner._bookkeeping_sync
    if getattr(sample, "repaired", False):
        return

    def kept_sample(runner: Any, *arguments: Any, **named: Any) -> Any:
        unfinished = of_unfinished(runner)
        states = {place: generator.get_state() for place, generator in unfinished.items()}
        output = sample(runner, *arguments, **named)
        for place, state in states.items():
            unfinished[place].set_state(state)
        return output

    def kept_bookkeep(runner: Any, *arguments: Any, **named: Any) -> Any:
        unfinished, generators = of_unfinished(runner), runner.input_batch.generators
        for place in unfinished:
            del generators[place]
        try:
            return bookkeep(runner, *arguments, **named)
        finally:
            generators.update(unfinished)

    kept_sample.repaired = True  # type: ignore[attr-defined]
    GPUModelRunner._sample, GPUModelRunner._bookkeeping_sync = kept_sample, kept_bookkeep


def of_unfinished(runner: Any) -> dict[int, Any]:
    """Return the generators of requests whose sampled token is thrown away, by place in the batch."""
    batch = runner.input_batch
    thrown_away = runner.discard_request_mask.np[: batch.num_reqs].nonzero()[0].tolist()
    return {place: batch.generators[place] for place in thrown_away if place in batch.generators}
