"""Multi-step traces made from recorded lengths.

Recorded: the distribution of one response. Modelled: how the responses of a prompt group resemble each other,
and how lengths move over RL steps. The origin of a generated trace says both.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import ndtr

from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.common.seeds import LENGTHS, generator
from tlt.traces.lengths.histogram import LengthHistogram
from tlt.traces.lengths.schema import INT32_MAX, Origin, Trace, check_cap
from tltsched.errors import InputError


def generate(
    hist: LengthHistogram,
    steps: int,
    prompts_per_step: int,
    samples_per_prompt: int,
    max_response_tokens: int | None = None,
    group_correlation: float = 0.0,
    length_drift_per_step: float = 0.0,
    prompt_tokens: int | LengthHistogram = 0,
    seed: int = 0,
) -> Trace:
    """Return a trace of steps x prompts x samples responses, in that order.

    group_correlation: rho in [0, 1) of a Gaussian copula:
    u = Phi(sqrt(rho) z_prompt + sqrt(1 - rho) z_sample) goes through the empirical quantile function,
    so the distribution of one response stays that of `hist`.
    length_drift_per_step: lengths of step s (from 0) are multiplied by exp(drift s) before the cap.
    max_response_tokens: None keeps the cap of the recording.
    prompt_tokens: one value, or a histogram drawn once a prompt, independently of the responses.
    Draws of step s depend on `seed`, s and the sizes of a step, not on `steps`. Raises InputError.
    """
    check_sizes(steps, prompts_per_step, samples_per_prompt)
    _check(steps, group_correlation, length_drift_per_step)
    _check_prompt_tokens(prompt_tokens)
    check_seed(seed)
    check_cap(max_response_tokens)
    cap = max_response_tokens or hist.max_response_tokens
    shape = (steps, prompts_per_step, samples_per_prompt)
    uniforms, prompts = _draws(shape, group_correlation, prompt_tokens, seed)
    drawn = hist.quantile(uniforms)
    growth = np.exp(length_drift_per_step * np.arange(steps))[:, None, None]
    lengths = np.clip(np.rint(drawn * growth), 1, cap or INT32_MAX)
    # A draw that the recording itself had cut stays cut, even where the new cap is higher.
    truncated = (lengths >= (cap or np.inf)) | (drawn >= (hist.max_response_tokens or np.inf))
    count = steps * prompts_per_step
    rows = pd.DataFrame(
        {
            "step": np.repeat(np.arange(steps, dtype=np.int32), prompts_per_step * samples_per_prompt),
            "prompt_id": np.repeat(np.arange(count, dtype=np.int64), samples_per_prompt),
            "sample": np.tile(np.arange(samples_per_prompt, dtype=np.int32), count),
            "prompt_tokens": np.repeat(prompts.ravel(), samples_per_prompt),
            "response_tokens": lengths.ravel().astype(np.int32),
            "truncated": truncated.ravel(),
        }
    )
    note = _note(hist, group_correlation, length_drift_per_step, prompt_tokens, seed)
    origin = Origin(
        source=f"generated from: {hist.origin.source}",
        kind="generated",
        model=hist.origin.model,
        tokenizer=hist.origin.tokenizer,
        max_response_tokens=cap,
        licence=hist.origin.licence,
        note=note,
    )
    return Trace(rows, origin)


def _draws(
    shape: tuple[int, int, int], correlation: float, prompt_tokens: int | LengthHistogram, seed: int
) -> tuple[Floats, npt.NDArray[np.int32]]:
    """Return uniforms of `shape` (steps, prompts, samples) and prompt lengths (steps, prompts)."""
    steps, prompts, samples = shape
    uniforms, prompt_lengths = np.empty(shape), np.empty((steps, prompts), np.int32)
    for step in range(steps):
        rng = generator(seed, LENGTHS, step)  # asking for more steps changes no draw
        group = rng.standard_normal((prompts, 1))
        own = rng.standard_normal((prompts, samples))
        uniforms[step] = ndtr(np.sqrt(correlation) * group + np.sqrt(1 - correlation) * own)
        prompt_lengths[step] = _prompt_lengths(prompt_tokens, prompts, rng)
    return uniforms, prompt_lengths


def check_seed(seed: int) -> None:
    """Raise InputError for a seed that no generator takes."""
    if seed < 0:
        raise InputError("seed", seed, "0 or more", "choose a whole number")


def check_sizes(steps: int, prompts: int, samples: int) -> None:
    """Raise InputError unless there is at least one response, and no more than can be numbered."""
    for field, got in (("steps", steps), ("prompts_per_step", prompts), ("samples_per_prompt", samples)):
        if not 1 <= got <= INT32_MAX:
            raise InputError(field, got, f"1 to {INT32_MAX}", "ask for at least one response")


def _check(steps: int, correlation: float, drift: float) -> None:
    if not 0 <= correlation < 1:
        raise InputError("group_correlation", correlation, "0 <= rho < 1", "0 means independent responses")
    if not abs(drift) * steps <= 20:  # exp(20) is beyond any length: almost surely a slip of the unit
        raise InputError(
            "length_drift_per_step", drift, f"-{20 / steps:g} to {20 / steps:g}", "0.001 grows 0.1 % a step"
        )


def _check_prompt_tokens(prompt_tokens: int | LengthHistogram) -> None:
    if isinstance(prompt_tokens, int) and not 0 <= prompt_tokens <= INT32_MAX:
        raise InputError("prompt_tokens", prompt_tokens, f"0 to {INT32_MAX}", "0 means not known")


def _prompt_lengths(prompt_tokens: int | LengthHistogram, count: int, rng: np.random.Generator) -> Ints:
    if isinstance(prompt_tokens, LengthHistogram):
        return prompt_tokens.sample(count, rng)
    return np.full(count, prompt_tokens, np.int64)


def _note(
    hist: LengthHistogram,
    correlation: float,
    drift: float,
    prompt_tokens: int | LengthHistogram,
    seed: int,
) -> str:
    base = "recorded" if hist.origin.kind in ("rollout", "serving") else hist.origin.kind
    kind = {"serving": " (serving, not RL rollouts)"}.get(hist.origin.kind, "")
    parts = [
        f"Length distribution: {base}{kind}",
        f"group correlation: modelled, Gaussian copula, rho = {correlation:g}",
        f"drift: modelled, {drift:g} a step in log length",
    ]
    if isinstance(prompt_tokens, LengthHistogram):
        parts.append(f"prompt lengths: drawn from {prompt_tokens.origin.source}, independent of the response")
    else:
        parts.append(f"prompt lengths: {'not known' if not prompt_tokens else f'assumed, {prompt_tokens}'}")
    return "; ".join([*parts, f"seed {seed}"]) + "."
