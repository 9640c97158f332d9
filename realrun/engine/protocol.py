"""What a rollout worker needs of an engine: submit requests, run one engine step, read its facts.

The driver knows nothing else about an engine, so tests drive it with a fake one, and
realrun.engine.vllm_engine is the only module that knows vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from tlt.plugin.engine_step import EngineStepFacts


class EngineRequest(msgspec.Struct, frozen=True, gc=False):
    """One response to generate.

    With `forced`, exactly `response_tokens` are generated whatever the model says; else it is the most. With
    `seed` the response does not depend on the batch around it; with speculation that holds for its law, not
    for its tokens, which follow from the drafts too. Responses of one `group` (-1: none) share a prompt and
    may be drafted from each other; a group keeps its number until the next load_policy. A response that was
    begun elsewhere or before goes on behind `resumed`, the tokens that it has, which count towards
    `response_tokens`. With `told` its tokens are reported when it is done.
    """

    id: int
    prompt_token_ids: tuple[int, ...]
    response_tokens: int
    forced: bool = True
    seed: int | None = None
    group: int = -1
    resumed: tuple[int, ...] = ()
    told: bool = False

    @property
    def context(self) -> tuple[int, ...]:
        """What the engine prefills: the prompt, and what the response has already."""
        return self.prompt_token_ids + self.resumed


class Engine(Protocol):
    """One inference engine in this process."""

    max_k: int  # longest chain that it can draft; 0: no speculation is configured

    def warm_up(self, batches: Sequence[int], ks: Sequence[int]) -> None:
        """Run every (batch, K) once, so that nothing is compiled or captured while the clock runs."""

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        """Queue requests; they are admitted by the engine's own scheduler."""

    def step(self, k: int) -> EngineStepFacts:
        """Run one engine step and draft `k` tokens a request for the next; requests must be pending."""

    def running(self) -> tuple[int, int]:
        """Return (requests in the running batch, their context tokens) as of now."""

    def pending(self) -> int:
        """Return how many submitted requests are not finished."""

    def responses(self) -> dict[int, tuple[int, ...]]:
        """Return the tokens of every request finished since the last call, by id, `resumed` left out."""

    def withdraw(self, requests: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Take requests that are pending out; returns what each has emitted, `resumed` left out."""

    def abort_all(self) -> None:
        """Drop all pending requests, so that the engine is empty."""

    def drop_caches(self) -> None:
        """Forget the prompts of earlier requests, as taking new weights does. Nothing may be pending."""

    def own_weights(self) -> Mapping[str, Any]:
        """Return the weights that it was built with, for load_policy; raises InputError where it cannot."""

    def load_policy(self, weights: Mapping[str, Any], version: int, kv_kept: bool = False) -> None:
        """Serve these weights from now on; `weights` are tensors under the names of a checkpoint.

        All caches are dropped and nothing may be pending, unless `kv_kept`: then what is pending goes on from
        the caches that it has, which older weights have made.
        """

    def load_drafter(self, weights: Mapping[str, Any], version: int) -> None:
        """Draft with these weights of a head from now on. Nothing may be pending."""

    def close(self) -> None:
        """Free the engine's memory."""
