"""What drafting costs beyond reading the drafter's weights, by engine: constants of a roofline.

The host takes most of it, so it hardly depends on the model, the GPU or how many of them share an engine.
`python -m evidence.measure roofline_drafting` fits both kinds, and says how far they are off on points that
the fit did not see.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Drafting = Literal["auto", "vllm_chains", "sglang_trees"]


class DraftingEngine(msgspec.Struct, frozen=True, kw_only=True):
    """One way to draft. `source` says which points the seconds are fitted to."""

    fixed_s: float  # of an engine step that drafts
    pass_s: float  # of each drafter pass, beside reading its weights
    source: str


DRAFTING: dict[str, DraftingEngine] = {
    "vllm_chains": DraftingEngine(
        fixed_s=0.0,
        pass_s=0.035e-3,
        source="fitted: chains of vLLM 0.32.0, 7B shape on one H100, CUDA graphs of every K (measured)",
    ),
    "sglang_trees": DraftingEngine(
        fixed_s=5.186e-3,
        pass_s=0.563e-3,
        source="fitted: half of the cells of TLT's figure 13 and table 4, trees on SGLang (published)",
    ),
}
