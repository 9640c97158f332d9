"""Sequences side by side in one row: the plan, the row, and that no token sees another sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.realrun.small_models import need
from tlt.realrun.engine import vllm_compat
from tlt.realrun.models.target import prepare_model

torch = pytest.importorskip("torch")
packing = pytest.importorskip("tlt.realrun.training.policy.packing")

LENGTHS = (5, 17, 3, 1, 30, 9)


@given(lengths=st.lists(st.integers(1, 60), max_size=40), budget=st.integers(1, 100))
def test_every_sequence_is_in_one_row_and_rows_keep_the_budget(lengths: list[int], budget: int) -> None:
    rows = packing.plan(lengths, budget)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    sizes = [sum(lengths[index] for index in row) for row in rows]
    assert all(size <= budget or len(row) == 1 for size, row in zip(sizes, rows, strict=True))
    # First fit: no two rows could have been one.
    assert sum(2 * size <= budget for size in sizes) <= 1


def test_a_row_holds_the_sequences_and_their_positions() -> None:
    packed = packing.pack([[1, 2], [3], [4, 5, 6]], [2, 0], "cpu")
    assert packed.indices == [2, 0]
    assert packed.tokens.tolist() == [[4, 5, 6, 1, 2]]
    assert packed.positions.tolist() == [[0, 1, 2, 0, 1]]
    assert packed.spans == [(0, 3), (3, 5)]


def _qwen2(place: Path) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128, attn_implementation="sdpa",
        )
    ).eval()  # fmt: skip


def _llama(place: Path) -> Any:
    from transformers import AutoModelForCausalLM

    folder = prepare_model("tiny", place / "tiny", vocab=64)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")


@pytest.mark.parametrize("make", [_llama, _qwen2])
def test_a_packed_row_gives_the_logits_of_each_sequence_alone(make: Any, tmp_path: Path) -> None:
    need("transformers")
    vllm_compat.hide_cuda_companions()
    model = make(tmp_path)
    generator = torch.Generator().manual_seed(1)
    sequences = [torch.randint(1, 64, (length,), generator=generator).tolist() for length in LENGTHS]
    packed = packing.pack(sequences, list(range(len(sequences))), "cpu")
    with torch.no_grad():
        together = model(input_ids=packed.tokens, position_ids=packed.positions, use_cache=False).logits[0]
        for sequence, (start, end) in zip(sequences, packed.spans, strict=True):
            alone = model(input_ids=torch.tensor([sequence]), use_cache=False).logits[0]
            torch.testing.assert_close(together[start:end], alone, rtol=1e-4, atol=1e-5)
        # It is the positions that do it: in one running row the later sequences see the earlier ones.
        mixed = model(input_ids=packed.tokens, use_cache=False).logits[0]
    start, end = packed.spans[-1]
    assert (mixed[start:end] - together[start:end]).abs().max() > 1e-2
