"""CPU: three kernels of speculative sampling compute the wrong thing or refuse to."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

Kernel = Callable[..., Any]


def repair() -> None:
    """Replace three of the CPU kernels that stand in for Triton; must run before an engine is built.

    `expand` writes the temperature of each token into a copy that it drops, so that sampled text with
    speculation is garbage. The two rejection kernels assert instead of accepting at synthetic rates.
    """
    from vllm.utils import cpu_triton_utils as kernels

    if kernels._expand_kernel_impl is expand:
        return
    kernels._expand_kernel_impl = expand
    kernels._rejection_greedy_sample_kernel_impl = _greedy(kernels._rejection_greedy_sample_kernel_impl)
    kernels._rejection_random_sample_kernel_impl = _random(kernels._rejection_random_sample_kernel_impl)


def expand(
    output: Any, input_val: Any, cu_num_tokens: Any, replace_from: Any, replace_to: Any,
    MAX_NUM_TOKENS: int | None = None,  # noqa: ARG001, N803 (the name of the kernel's argument)
) -> None:  # fmt: skip
    """Repeat the value of each request over its tokens, into `output` [tokens]."""
    import torch

    ends = cu_num_tokens.to(torch.int64)
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    values = input_val.masked_fill(input_val == replace_from, replace_to)
    output.copy_(values.repeat_interleave(counts))


def _greedy(original: Kernel) -> Kernel:
    def kernel(
        output: Any, ends: Any, drafts: Any, argmax: Any, bonus: Any, is_greedy: Any, longest: Any,
        uniform: Any = None, rates: Any = None, synthetic: bool = False,
    ) -> None:  # fmt: skip
        if not synthetic:
            original(output, ends, drafts, argmax, bonus, is_greedy, longest, uniform, rates, synthetic)
            return
        rows = None if is_greedy is None else is_greedy.tolist()
        accept_at_rates(output, ends, drafts, argmax, bonus, rows, uniform, rates)

    return kernel


def _random(original: Kernel) -> Kernel:
    def kernel(
        output: Any, ends: Any, drafts: Any, draft_probs: Any, target_probs: Any, bonus: Any, recovered: Any,
        uniform: Any, is_greedy: Any, longest: Any, vocab: Any, rates: Any = None,
        no_draft_probs: bool = False, synthetic: bool = False,
    ) -> None:  # fmt: skip
        if not synthetic:
            original(
                output, ends, drafts, draft_probs, target_probs, bonus, recovered, uniform, is_greedy,
                longest, vocab, rates, no_draft_probs, synthetic,
            )  # fmt: skip
            return
        rows = [not greedy for greedy in is_greedy.tolist()]
        accept_at_rates(output, ends, drafts, recovered, bonus, rows, uniform, rates)

    return kernel


def accept_at_rates(
    output: Any, ends: Any, drafts: Any, otherwise: Any, bonus: Any, rows: list[bool] | None, uniform: Any,
    rates: Any,
) -> None:  # fmt: skip
    """Accept each draft with the conditional rate of its position, until the first that is refused.

    `output` is [batch, longest + 1], `ends` [batch] the running sum of drafts; `drafts`, `otherwise` (the
    token that follows a refusal) and `uniform` are [drafts]; `rates` is [longest]. `rows`, if given, marks
    the requests that this kernel serves.
    """
    stops = ends.tolist()
    chance, rate, tokens = uniform.tolist(), rates.tolist(), drafts.tolist()
    for row, (start, stop) in enumerate(pairwise([0, *stops])):
        if rows is not None and not rows[row]:
            continue
        count = stop - start
        accepted = 0
        while (
            accepted < count and chance[start + accepted] < rate[accepted] and tokens[start + accepted] >= 0
        ):
            accepted += 1
        output[row, :accepted] = drafts[start : start + accepted].to(output.dtype)
        last = bonus.view(-1)[row] if accepted == count else otherwise[start + accepted]
        output[row, accepted] = last.to(output.dtype)
