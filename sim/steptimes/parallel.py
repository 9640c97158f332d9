"""How one engine is spread over GPUs, and what each of them then reads, keeps and sends.

Tensor parallel (tp) cuts every matrix; the cache is cut by heads, and copied where there are fewer of them
than GPUs, as a latent cache is always. Data-parallel attention (attention_dp) runs groups of tp GPUs on
requests of their own, each with a copy of all but the experts, which are cut over all groups. Expert parallel
(ep) gives whole experts to GPUs instead of slices of all. A pipeline (pp) holds layers in stages; a batch
passes it in as many microbatches, so that an engine step takes as long as one of them takes through all
layers.

All GPUs of an engine decide alike: a step has one K, taken for the whole batch, since every rank takes part
in each exchange, and a rank with fewer tokens waits. An engine that asks its ranks apart takes the least.
"""

from __future__ import annotations

import msgspec

from tlt.traces.catalogue.shape import BF16_BYTES, ModelShape
from tltsched.errors import InputError


class Parallel(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs of one engine: tp x attention_dp x pp."""

    tp: int = 1
    pp: int = 1
    attention_dp: int = 1
    ep: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of one engine."""
        return self.tp * self.pp * self.attention_dp

    @property
    def expert_gpus(self) -> int:
        """GPUs of one stage: the experts of a layer are cut over them."""
        return self.tp * self.attention_dp

    def words(self) -> str:
        """Return how it is spread: TP 4, DP 2, EP 8."""
        others = {"PP": self.pp, "DP": self.attention_dp, "EP": self.ep}
        return f"TP {self.tp}" + "".join(f", {name} {size}" for name, size in others.items() if size > 1)

    def count(self) -> str:
        """Return the number of GPUs, and how it is spread where that is not tensor parallel alone."""
        return str(self.tp) if self == Parallel(tp=self.tp) else f"{self.gpus} ({self.words()})"

    def check(self, shape: ModelShape) -> None:
        """Raise InputError for a model that cannot be spread so."""
        if self.pp > shape.layers:
            raise InputError("hardware.pp", self.pp, f"at most the {shape.layers} layers", "lower it")
        experts = shape.experts
        if experts is None:
            if self.ep > 1 or self.attention_dp > 1:
                field = "hardware.ep" if self.ep > 1 else "hardware.attention_dp"
                fix = "set it to 1: engines of a dense model are independent (more hardware.gpus)"
                raise InputError(field, max(self.ep, self.attention_dp), f"1, {shape.name} is dense", fix)
            return
        if self.ep > 1 and (self.ep != self.expert_gpus or experts.count % self.ep):
            raise InputError(
                "hardware.ep", self.ep, f"1, or hardware.tp x hardware.attention_dp = {self.expert_gpus}, "
                f"which has to divide {experts.count} experts", "change one of them",
            )  # fmt: skip

    def cache_copies(self, shape: ModelShape) -> float:
        """Return on how many GPUs of a tp group each byte of the cache lies."""
        heads = 1 if shape.latent else shape.kv_heads
        return self.tp / min(self.tp, heads)

    def weight_bytes(self, shape: ModelShape) -> float:
        """Return the bytes of weights on all GPUs of the engine, copies included."""
        experts = shape.expert_bytes()
        return (shape.weight_bytes() - experts) * self.attention_dp + experts

    def exchange_s(self, shape: ModelShape, allreduce_s: float, alltoall_s: float) -> float:
        """Return the seconds that exchanges between GPUs take in one pass, however few tokens there are."""
        dispatched = shape.experts.layers if shape.experts and self.attention_dp > 1 else 0
        reduced = 2 * shape.layers - dispatched if self.tp > 1 else 0
        return reduced * allreduce_s + 2 * dispatched * alltoall_s

    def exchange_s_per_token(self, shape: ModelShape, link_bytes_per_s: float | None) -> float:
        """Return the seconds that each token of a batch adds to exchanges; 0 where no link is known.

        A ring sends 2 (tp - 1) / tp of what it reduces; to experts elsewhere a token is sent once for each.
        """
        if link_bytes_per_s is None:
            return 0.0
        state, sent = shape.hidden * BF16_BYTES, 0.0
        dispatched = shape.experts.layers if shape.experts and self.attention_dp > 1 else 0
        if self.tp > 1:
            sent += (2 * shape.layers - dispatched) * 2 * (self.tp - 1) / self.tp * state
        if shape.experts and dispatched:
            away = 1 - 1 / self.expert_gpus
            sent += 2 * dispatched * shape.experts.per_token * away * state / self.tp
        return sent / link_bytes_per_s / (self.attention_dp * self.pp)
