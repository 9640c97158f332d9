"""Step times from first principles, for a model and a GPU that nobody has calibrated: assumed, not measured.

Published are the shape of the model and the data sheet of the GPU (tlt.traces.catalogue). What is assumed
stands in `Assumptions`.
Against the measured H100 points of the shipped calibrations this roofline is off by the share that
evidence/records/roofline_vs_measured.json says.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tlt.sim.steptimes.drafting import DRAFTING, Drafting, DraftingEngine
from tlt.sim.steptimes.experts import ExpertTerm
from tlt.sim.steptimes.law import Coefficients
from tlt.sim.steptimes.parallel import Parallel
from tlt.traces.catalogue.gpus import GpuSpec
from tlt.traces.catalogue.models import model_shape
from tlt.traces.catalogue.shape import BF16_BYTES, ModelShape
from tltsched.errors import InputError

Share = Annotated[float, Meta(gt=0.0, le=1.0)]
Seconds = Annotated[float, Meta(ge=0.0)]


class Assumptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Efficiencies that a data sheet does not give. Every default is assumed."""

    memory_efficiency: Annotated[
        Share, Meta(description="assumed: share of data-sheet bandwidth that decode kernels reach")
    ] = 0.80
    compute_efficiency: Annotated[
        Share, Meta(description="assumed: share of dense bf16 throughput that large matrix products reach")
    ] = 0.55
    step_host_s: Annotated[
        Seconds, Meta(description="assumed: scheduling and sampling that a step cannot overlap")
    ] = 0.5e-3
    layer_launch_s: Annotated[
        Seconds, Meta(description="assumed: gaps between kernels of one layer inside a CUDA graph")
    ] = 25e-6
    expert_layer_launch_s: Annotated[
        Seconds, Meta(description="assumed: what a layer of experts adds to that: router, sorting, gathering")
    ] = 25e-6
    expert_skew: Annotated[
        float,
        Meta(
            ge=0.0,
            le=3.0,
            description="assumed: the n-th likeliest expert is taken as often as n ** -this; 0: all alike",
        ),
    ] = 0.0
    allreduce_s: Annotated[
        Seconds, Meta(description="assumed: one all-reduce over NVLink; a layer has two when tp > 1")
    ] = 10e-6
    alltoall_s: Annotated[
        Seconds, Meta(description="assumed: one all-to-all; a layer of experts has two with attention_dp > 1")
    ] = 20e-6
    stage_s: Annotated[
        Seconds, Meta(description="assumed: handing a batch from one stage of a pipeline to the next")
    ] = 50e-6
    link_efficiency: Annotated[
        Share, Meta(description="assumed: share of a link's data-sheet rate that exchanges reach")
    ] = 0.70
    drafting: Annotated[
        Drafting,
        Meta(
            description="engine that drafts: vllm_chains (fitted to measured points), sglang_trees (fitted "
            "to published ones); auto: trees where acceptance is of trees, else chains"
        ),
    ] = "auto"
    draft_fixed_s: Annotated[
        Seconds | None, Meta(description="host work of a drafting engine step; unset: of `drafting`")
    ] = None
    draft_pass_s: Annotated[
        Seconds | None,
        Meta(description="a drafter pass beside reading its weights; unset: of `drafting`"),
    ] = None
    draft_model: Annotated[
        str,
        Meta(
            description="drafts come from this model, by name of its shape, instead of a head of one layer; "
            "assumed: each pass is one of its plain engine steps"
        ),
    ] = ""
    draft_vocab: Annotated[int, Meta(ge=1, description="rows of the drafter's output head")] = 32_000
    prefill_chunk_s: Annotated[
        Seconds, Meta(description="assumed: host and launch work of one prefill chunk")
    ] = 2e-3


def roofline(
    shape: ModelShape, gpu: GpuSpec, parallel: Parallel, assumed: Assumptions, trees: bool = False
) -> Coefficients:
    """Return coefficients for `shape` on the GPUs of one engine; decode is memory-bound up to one knot.

    `trees`: what drafts, where the assumptions leave that open. Raises InputError for an unknown draft model,
    and for a model that cannot be spread so.
    """
    parallel.check(shape)
    bandwidth = gpu.memory_bytes_per_s * assumed.memory_efficiency * parallel.tp
    weights_s = shape.fixed_bytes() / bandwidth
    experts = _experts(shape, bandwidth * parallel.attention_dp, parallel, assumed)
    token_s = _token_s(shape, gpu, parallel.gpus, assumed)
    link = None if gpu.link_bytes_per_s is None else gpu.link_bytes_per_s * assumed.link_efficiency
    sent_s = parallel.exchange_s_per_token(shape, link)
    groups = parallel.attention_dp * parallel.pp
    copies = parallel.cache_copies(shape)
    draft_pass_s, drafter_kv_share = _drafter_pass(shape, bandwidth, parallel, assumed, trees)
    fixed_s = assumed.draft_fixed_s
    all_s = weights_s + (experts.read_s if experts else 0.0)
    return Coefficients(
        knots_tokens=(1.0, max(all_s / token_s, 2.0)),
        floor_s=weights_s + _launch_s(shape, parallel, assumed),
        slopes_s_per_token=(sent_s, token_s + sent_s),
        kv_s_per_token=shape.read_bytes_per_token() * copies / bandwidth / groups,
        drafter_kv_share=drafter_kv_share,
        off_s=draft_pass_s,
        off_s_per_request=0.0,
        draft_s=drafting_engine(assumed, trees).fixed_s if fixed_s is None else fixed_s,
        draft_pass_s=draft_pass_s,
        draft_pass_s_per_request=0.0,  # no fit to measured or published points finds any
        graph_tokens=None,
        eager_s=0.0,
        # A chunk of a prompt wakes nearly all experts.
        prefill_chunk_s=assumed.prefill_chunk_s + (experts.read_s if experts else 0.0),
        prefill_s_per_token=token_s + sent_s,
        prefill_s_per_pair=shape.attention_flops_per_pair()
        / 2
        / (gpu.bf16_flops * assumed.compute_efficiency * parallel.gpus),
        request_s=shape.read_bytes_per_request() * copies / bandwidth / groups,
        experts=experts,
    )


def _token_s(shape: ModelShape, gpu: GpuSpec, gpus: int, assumed: Assumptions) -> float:
    """Return the seconds of one token's matrix products, each at the rate of its weights."""
    return sum(
        2 * parameters / (gpu.flops(products) * assumed.compute_efficiency * gpus)
        for products, parameters in shape.active_by_products().items()
    )


def _experts(
    shape: ModelShape, bandwidth: float, parallel: Parallel, assumed: Assumptions
) -> ExpertTerm | None:
    if shape.experts is None:
        return None
    return ExpertTerm(
        count=shape.experts.count,
        per_token=shape.experts.per_token,
        read_s=shape.expert_bytes() / bandwidth,
        skew=assumed.expert_skew,
        ranks=parallel.ep,
        microbatches=parallel.pp,
    )


def _launch_s(shape: ModelShape, parallel: Parallel, assumed: Assumptions) -> float:
    """Return what a pass takes beside reading and calculating, however many tokens it has."""
    exchange_s = 2 * assumed.allreduce_s if parallel.tp > 1 else 0.0
    if shape.experts is None and parallel.pp == 1:
        return assumed.step_host_s + shape.layers * (assumed.layer_launch_s + exchange_s)
    layers_s = shape.layers * assumed.layer_launch_s
    layers_s += shape.experts.layers * assumed.expert_layer_launch_s if shape.experts else 0.0
    exchanged_s = parallel.exchange_s(shape, assumed.allreduce_s, assumed.alltoall_s)
    return assumed.step_host_s + layers_s + exchanged_s + (parallel.pp - 1) * assumed.stage_s


def drafting_engine(assumed: Assumptions, trees: bool) -> DraftingEngine:
    """Return the engine that drafts: the one that is named, else by whether trees are drafted."""
    return DRAFTING[drafting_name(assumed, trees)]


def drafting_name(assumed: Assumptions, trees: bool) -> str:
    """Return its name."""
    if assumed.drafting != "auto":
        return assumed.drafting
    return "sglang_trees" if trees else "vllm_chains"


def drafter_words(assumed: Assumptions, trees: bool) -> str:
    """Say what drafts are taken to cost, and which settings name another drafter."""
    if assumed.draft_model:
        return f"drafts come from {assumed.draft_model} (cost.roofline.draft_model)"
    return (
        f"drafts cost as in {drafting_name(assumed, trees)} (cost.roofline.drafting), from a head of "
        f"{assumed.draft_vocab:,} rows (cost.roofline.draft_vocab)"
    )


def _drafter_pass(
    shape: ModelShape, bandwidth: float, parallel: Parallel, assumed: Assumptions, trees: bool
) -> tuple[float, float]:
    """Return the seconds of a drafter pass, and its KV cache over the target's.

    A head is one dense layer; it is cut as the target's matrices are, over one tensor-parallel group.
    """
    given_s = assumed.draft_pass_s
    host_s = drafting_engine(assumed, trees).pass_s if given_s is None else given_s
    if not assumed.draft_model:
        head = shape.layer_parameters() + 3 * shape.hidden**2 + assumed.draft_vocab * shape.hidden
        return head * BF16_BYTES / bandwidth + host_s, 1 / shape.cache_layers()
    drafter = model_shape(assumed.draft_model, "cost.roofline.draft_model")
    if drafter.experts:
        raise InputError(
            "cost.roofline.draft_model", assumed.draft_model, "a dense model", "name one without experts"
        )
    exchange_s = 2 * assumed.allreduce_s if parallel.tp > 1 else 0.0
    layers_s = drafter.layers * (assumed.layer_launch_s + exchange_s)
    weights_s = drafter.fixed_bytes() / bandwidth
    read = shape.read_bytes_per_token() or shape.read_bytes_per_request()
    return weights_s + layers_s + host_s, drafter.read_bytes_per_token() / read
