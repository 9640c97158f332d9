"""Which tokens a head can draft: those that responses use most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch


def draft_ids(
    responses: Iterable[Sequence[int]], size: int, vocab: int, always: Iterable[int] = ()
) -> torch.Tensor:
    """Return `size` ids [size], ascending: `always`, then the most frequent, then the lowest unused ones."""
    counts = Counter(token for response in responses for token in response)
    chosen = dict.fromkeys(always)
    for token, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        chosen.setdefault(token)
    for token in range(vocab):
        if len(chosen) >= size:
            break
        chosen.setdefault(token)
    return torch.tensor(sorted(list(chosen)[:size]))
