"""Attention inside the sequences of a packed row, by the flash kernel that takes their borders.

With position ids alone transformers builds a mask of [T, T] for a packed row, and the kernel for masks works
through all of it: the cost grows with the row, not with its sequences. This one costs what the sequences
cost. It runs on CUDA in 16-bit formats only.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn

from tlt.realrun.training.policy.packing import Pack

NAME = "tlt_varlen"


def use(model: Any) -> None:
    """Make a transformers model attend so; each of its forwards then needs the arguments of `borders`."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)
    model.set_attn_implementation(NAME)


def borders(packed: Pack) -> dict[str, Any]:
    """Return the arguments that tell a forward pass where the sequences of its row begin and end."""
    lengths = [end - start for start, end in packed.spans]
    ends = torch.tensor(list(accumulate(lengths, initial=0)), dtype=torch.int32)
    return {"sequence_ends": ends.to(packed.tokens.device), "longest": max(lengths)}


def attend(
    module: Any,  # noqa: ARG001 (the signature of transformers)
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: None, *,  # noqa: ARG001
    scaling: float, sequence_ends: torch.Tensor, longest: int, **_: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Return the attention [1, T, heads, D] of one row; query [1, heads, T, D], key and value with fewer.

    Rotary embedding leaves queries and keys in float32 under autocast, and the kernel takes one format.
    """
    rows = [part[0].transpose(0, 1).to(value.dtype) for part in (query, key, value)]
    attended = varlen_attn(
        *rows, sequence_ends, sequence_ends, longest, longest, scale=scaling, window_size=(-1, 0),
        enable_gqa=True,
    )  # fmt: skip
    assert isinstance(attended, torch.Tensor)  # the kernel gives more only when asked
    return attended[None], None
