"""Published shapes of models: for rooflines, and for engines with random weights.

Shapes are those of the config.json that the model's authors publish; parameter counts follow from them.
"""

from __future__ import annotations

import msgspec

BF16_BYTES = 2


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder-only transformer with grouped-query attention and a gated MLP."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    mlp_hidden: int
    vocab: int
    tied: bool
    source: str

    def layer_parameters(self) -> int:
        """Parameters of one layer, norms and biases left out (under 0.1 %)."""
        attention = self.hidden * self.head_size * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.mlp_hidden

    def read_parameters(self) -> int:
        """Parameters read in one decode step: all layers and the output head, not the embedding table."""
        return self.layers * self.layer_parameters() + self.vocab * self.hidden

    def parameters(self) -> int:
        """All parameters held in memory."""
        return self.read_parameters() + (0 if self.tied else self.vocab * self.hidden)

    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that one token leaves in the cache, in bf16."""
        return 2 * self.layers * self.kv_heads * self.head_size * BF16_BYTES

    def attention_flops_per_pair(self) -> int:
        """Floating-point operations for one query token over one cached token, all layers."""
        return 4 * self.layers * self.heads * self.head_size


def _shape(name: str, hidden: int, layers: int, heads: tuple[int, int, int], mlp_hidden: int, vocab: int,
           tied: bool = False) -> ModelShape:  # fmt: skip
    return ModelShape(
        name=name, hidden=hidden, layers=layers, heads=heads[0], kv_heads=heads[1], head_size=heads[2],
        mlp_hidden=mlp_hidden, vocab=vocab, tied=tied, source=f"published: config.json of {name}",
    )  # fmt: skip


MODELS: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        ModelShape(
            name="tiny",
            hidden=64,
            layers=2,
            heads=4,
            kv_heads=2,
            head_size=32,
            mlp_hidden=128,
            vocab=512,
            tied=True,
            source="made up: for tests of the real engine",
        ),
        _shape("SmolLM2-135M", 576, 30, (9, 3, 64), 1536, 49_152, tied=True),
        _shape("Qwen2.5-0.5B", 896, 24, (14, 2, 64), 4864, 151_936, tied=True),
        _shape("Qwen2.5-1.5B", 1536, 28, (12, 2, 128), 8960, 151_936, tied=True),
        _shape("Qwen2.5-7B", 3584, 28, (28, 4, 128), 18_944, 152_064),
        _shape("Qwen2.5-14B", 5120, 48, (40, 8, 128), 13_824, 152_064),
        _shape("Qwen2.5-32B", 5120, 64, (40, 8, 128), 27_648, 152_064),
        _shape("Llama-3-8B", 4096, 32, (32, 8, 128), 14_336, 128_256),
        _shape("Llama-3.3-70B", 8192, 80, (64, 8, 128), 28_672, 128_256),
    )
}
