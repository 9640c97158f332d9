"""What drafting costs with another drafter than the head that step times were measured with: assumed.

    mtp          a pass is one layer of the target, of its own kind (experts included), a projection of two
                 hidden states, and the target's output head
    draft_model  a pass is a plain engine step of a smaller model
    block        one pass drafts all K tokens: some layers and the target's output head, over K + 1 tokens

The bytes that a pass reads come at the roofline's bandwidth, the host's part is that of vLLM's chains, and an
MTP pass takes the target's own share of its engine step. Only the cost of a head has been measured here.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from tlt.sim.steptimes.drafting import DRAFTING
from tlt.sim.steptimes.law import Coefficients
from tlt.sim.steptimes.roofline import Assumptions
from tlt.traces.catalogue.gpus import GpuSpec
from tlt.traces.catalogue.models import model_shape
from tlt.traces.catalogue.shape import BF16_BYTES, ModelShape

OwnCost = Literal["mtp", "draft_model", "block"]
OWN_COST: tuple[OwnCost, ...] = get_args(OwnCost)
HOST = DRAFTING["vllm_chains"]


class Drafter(msgspec.Struct, frozen=True, kw_only=True):
    """A drafter that is no head of one layer. `model` names a draft model, `layers` are those of a block."""

    kind: OwnCost
    model: str = ""
    layers: int = 5

    def words(self) -> str:
        """Say what drafts are taken to cost."""
        if self.kind == "mtp":
            return "a pass of the MTP module costs one layer of the target and its output head"
        if self.kind == "draft_model":
            return f"a pass of {self.model} costs one of its plain engine steps"
        return f"one pass of {self.layers} layers and the output head drafts the whole block"


def with_drafter(
    law: Coefficients, drafter: Drafter, shape: ModelShape, gpu: GpuSpec, tp: int, assumed: Assumptions
) -> Coefficients:
    """Return the law of step times with another drafter's passes in place of the head's.

    Raises InputError for a draft model that is not known.
    """
    bandwidth = gpu.memory_bytes_per_s * assumed.memory_efficiency * tp
    head = shape.vocab * shape.hidden
    share = 1 / shape.cache_layers()
    none = msgspec.structs.replace(
        law, draft_s=HOST.fixed_s, draft_pass_s_per_request=0.0, off_s_per_request=0.0,
        draft_target_share=0.0, draft_once=False,
    )  # fmt: skip
    if drafter.kind == "mtp":
        read = 2 * shape.hidden**2 + head
        pass_s = read * BF16_BYTES / bandwidth + HOST.pass_s
        return msgspec.structs.replace(
            none,
            draft_pass_s=pass_s,
            off_s=pass_s,
            drafter_kv_share=share,
            draft_target_share=1 / shape.layers,
        )
    if drafter.kind == "draft_model":
        small = model_shape(drafter.model, "drafter.model")
        pass_s = small.fixed_bytes() / bandwidth + small.layers * assumed.layer_launch_s + HOST.pass_s
        held = small.kv_bytes_per_token() / max(shape.kv_bytes_per_token(), 1.0)
        return msgspec.structs.replace(none, draft_pass_s=pass_s, off_s=pass_s, drafter_kv_share=held)
    parameters = drafter.layers * shape.layer_parameters() + 3 * shape.hidden**2 + head
    pass_s = parameters * BF16_BYTES / bandwidth + drafter.layers * assumed.layer_launch_s + HOST.pass_s
    token_s = 2 * parameters / (gpu.bf16_flops * assumed.compute_efficiency * tp)
    return msgspec.structs.replace(
        none, draft_pass_s=pass_s, off_s=pass_s, drafter_kv_share=drafter.layers * share, draft_once=True,
        draft_s_per_token=law.draft_s_per_token + token_s,
    )  # fmt: skip
