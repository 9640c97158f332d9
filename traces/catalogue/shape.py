"""The shape of a decoder-only transformer: what it has to read, to keep and to calculate for a token."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

BF16_BYTES = 2
Products = Literal["bf16", "fp8", "fp4"]  # the arithmetic of matrix products


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """How one kind of weights is stored: bits a parameter, scales included, and what is multiplied with."""

    bits: float = 16.0
    products: Products = "bf16"


BF16 = Weights()


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """The experts of a mixture: `layers` of them have `count` each, of which a token takes `per_token`."""

    layers: int
    count: int
    per_token: int
    hidden: int
    shared_hidden: int = 0  # of what every token passes beside them; 0: nothing


class Latent(msgspec.Struct, frozen=True, kw_only=True):
    """Multi-head latent attention: one compressed vector a token and layer is kept for all heads."""

    query_rank: int  # 0: queries are not compressed
    kv_rank: int
    nope: int  # of a head: without position
    rope: int  # of a head: with position, shared by all heads in the cache
    value: int


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that look back so many tokens and no further."""

    layers: int
    tokens: int


class Linear(msgspec.Struct, frozen=True, kw_only=True):
    """Layers of linear attention (gated delta rule): a state of fixed size, no cache that grows."""

    layers: int
    key_heads: int
    key_size: int
    value_heads: int
    value_size: int
    kernel: int


class Indexer(msgspec.Struct, frozen=True, kw_only=True):
    """What chooses the tokens that sparse attention reads: a key a token in 8 bits, in so many layers."""

    layers: int  # others take what the one before them chose
    heads: int
    size: int
    tokens: int  # that a layer attends to at most

    def bytes_per_token(self) -> float:
        """Return the bytes of keys, with a scale of four bytes for 128 numbers, that a token leaves."""
        return self.layers * self.size * (1 + 4 / 128)


class Part(NamedTuple):
    """Weights of one kind in the whole model; a token passes `active` of them."""

    name: str
    parameters: int
    active: int
    weights: Weights


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder with grouped-query or latent attention and gated MLPs, dense or of experts.

    Norms, biases and other vectors are left out: under 0.1 % of the parameters.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    mlp_hidden: int  # of dense layers, and of a drafter's one
    vocab: int
    tied: bool
    source: str
    latent: Latent | None = None
    window: Window | None = None
    linear: Linear | None = None
    indexer: Indexer | None = None
    output_gate: bool = False  # attention has a gate of the size of its queries
    experts: Experts | None = None
    attention_weights: Weights = BF16
    mlp_weights: Weights = BF16  # of dense layers, and of shared experts
    expert_weights: Weights = BF16
    kv_bits: float = 16.0

    def attention_parameters(self) -> int:
        """Return the parameters of one layer's attention (of queries, keys and values, not linear)."""
        if self.latent is None:
            gate = self.heads if self.output_gate else 0
            return self.hidden * self.head_size * (2 * self.heads + 2 * self.kv_heads + gate)
        latent, each = self.latent, self.latent.nope + self.latent.rope
        if latent.query_rank:
            queries = latent.query_rank * (self.hidden + self.heads * each)
        else:
            queries = self.hidden * self.heads * each
        down = self.hidden * (latent.kv_rank + latent.rope)
        up = latent.kv_rank * self.heads * (latent.nope + latent.value)
        return queries + down + up + self.heads * latent.value * self.hidden

    def layer_parameters(self) -> int:
        """Return the parameters of one dense layer: what a head that drafts has, too."""
        return self.attention_parameters() + 3 * self.hidden * self.mlp_hidden

    def parts(self) -> tuple[Part, ...]:
        """Return all weights that an engine step may read: everything but the embedding table."""
        linear = self.linear.layers if self.linear else 0
        attention = (self.layers - linear) * self.attention_parameters() + self._linear_parameters()
        attention += self._indexer_parameters()
        experts = self.experts
        dense = (self.layers - (experts.layers if experts else 0)) * 3 * self.hidden * self.mlp_hidden
        head = self.vocab * self.hidden
        parts = [
            Part("attention", attention, attention, self.attention_weights),
            Part("dense layers", dense, dense, self.mlp_weights),
            Part("head", head, head, BF16),
        ]
        if experts:
            one = 3 * self.hidden * experts.hidden
            shared = experts.layers * 3 * self.hidden * experts.shared_hidden
            router = experts.layers * experts.count * self.hidden
            parts += [
                Part("shared experts", shared, shared, self.mlp_weights),
                Part("routers", router, router, BF16),
                Part("experts", experts.layers * experts.count * one,
                     experts.layers * experts.per_token * one, self.expert_weights),
            ]  # fmt: skip
        return tuple(parts)

    def _linear_parameters(self) -> int:
        if self.linear is None:
            return 0
        keys = self.linear.key_heads * self.linear.key_size
        values = self.linear.value_heads * self.linear.value_size
        mixed = 2 * keys + values  # queries, keys and values pass a short convolution
        projected = self.hidden * (mixed + values + 2 * self.linear.value_heads)
        return self.linear.layers * (projected + values * self.hidden + self.linear.kernel * mixed)

    def _indexer_parameters(self) -> int:
        if self.indexer is None:
            return 0
        queries = (
            (self.latent.query_rank if self.latent else self.hidden) * self.indexer.heads * self.indexer.size
        )
        return self.indexer.layers * (queries + self.hidden * (self.indexer.size + self.indexer.heads))

    def read_parameters(self) -> int:
        """Return the parameters an engine step reads where it wakes every expert: all but the embedding."""
        return sum(part.parameters for part in self.parts())

    def active_parameters(self) -> int:
        """Return the parameters that one token is multiplied with."""
        return sum(part.active for part in self.parts())

    def parameters(self) -> int:
        """Return all parameters held in memory."""
        return self.read_parameters() + self._embedding()

    def _embedding(self) -> int:
        return 0 if self.tied else self.vocab * self.hidden

    def fixed_bytes(self) -> float:
        """Return the bytes of weights that every engine step reads: all but routed experts, embedding."""
        return sum(_bytes(part) for part in self.parts() if part.name != "experts")

    def expert_bytes(self) -> float:
        """Return the bytes of all routed experts of all layers; 0: there are none."""
        return sum(_bytes(part) for part in self.parts() if part.name == "experts")

    def weight_bytes(self) -> float:
        """Return the bytes of all weights in memory."""
        return self.fixed_bytes() + self.expert_bytes() + self._embedding() * BF16_BYTES

    def active_by_products(self) -> dict[Products, int]:
        """Return by arithmetic how many parameters a token is multiplied with."""
        found: dict[Products, int] = {}
        for part in self.parts():
            found[part.weights.products] = found.get(part.weights.products, 0) + part.active
        return found

    def attention_layers(self) -> int:
        """Return the layers whose cache grows with the whole context."""
        others = (self.window.layers if self.window else 0) + (self.linear.layers if self.linear else 0)
        return self.layers - others

    def _layer_kv_values(self) -> int:
        """Return the numbers that one token leaves in the cache of one layer."""
        if self.latent:
            return self.latent.kv_rank + self.latent.rope
        return 2 * self.kv_heads * self.head_size

    def kv_bytes_per_token(self) -> float:
        """Return the bytes that one further token of context leaves in memory."""
        held = self.attention_layers() * self._layer_kv_values() * self.kv_bits / 8
        return held + self.indexer.bytes_per_token() if self.indexer else held

    def read_bytes_per_token(self) -> float:
        """Return the bytes that one further token of context adds to what an engine step reads."""
        return self.indexer.bytes_per_token() if self.indexer else self.kv_bytes_per_token()

    def read_bytes_per_request(self) -> float:
        """Return what an engine step reads of a request however long it is, of all tokens it may choose."""
        held = self.kv_bytes_per_request()
        if self.indexer is None:
            return held
        return (
            held + self.attention_layers() * self.indexer.tokens * self._layer_kv_values() * self.kv_bits / 8
        )

    def kv_bytes_per_request(self) -> float:
        """Return the bytes of a request that do not grow with its context: windows (full), linear states."""
        held = 0.0
        if self.window:
            held += self.window.layers * self.window.tokens * self._layer_kv_values() * self.kv_bits / 8
        if self.linear:
            held += self.linear.layers * self.linear.value_heads * self.linear.key_size * (
                self.linear.value_size * 4)  # states are kept in float32  # fmt: skip
        return held

    def cache_layers(self) -> int:
        """Return of how many layers' cache a drafter's one layer is a share: 1 where none grows."""
        return max(self.attention_layers(), 1)

    def attention_flops_per_pair(self) -> int:
        """Return operations for one query token over one cached token, all layers whose cache grows."""
        if self.indexer:  # each token is scored, and those chosen are as many however long the context is
            return 2 * self.indexer.layers * self.indexer.heads * self.indexer.size
        size = 2 * self.head_size
        if self.latent:
            size = self.latent.nope + self.latent.rope + self.latent.value
        return 2 * self.attention_layers() * self.heads * size

    def quantised(self, weights: Weights) -> ModelShape:
        """Return the shape with the matrices of all layers stored as `weights`; head and embedding stay."""
        return msgspec.structs.replace(
            self, attention_weights=weights, mlp_weights=weights, expert_weights=weights
        )


def _bytes(part: Part) -> float:
    return part.parameters * part.weights.bits / 8
