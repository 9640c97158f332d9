"""How weights get from the trainers to the rollout engines: bytes over bandwidth, plus a latency.

No two figures here are of one machine. Each says where it is from; whoever has timed the own sync gives
phases.weight_sync_s, or phases.sync_bytes_per_s beside a transport.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

TransportName = Literal["assumed", "nccl", "nccl_per_tensor", "rdma", "ipc", "disk", "http"]


class Transport(msgspec.Struct, frozen=True, kw_only=True):
    """One way, its bandwidth over the whole model and what every sync takes beside it."""

    bytes_per_s: float
    latency_s: float
    source: str  # begins with "assumed" or "published"


TRANSPORTS: dict[TransportName, Transport] = {
    "assumed": Transport(bytes_per_s=25e9, latency_s=0.0, source="assumed"),
    # 61.1 and 470.2 GB of bf16 weights in 4.38 and 23.70 s; without buckets in 15.76 and 58.57 s
    "nccl": Transport(
        bytes_per_s=21.2e9, latency_s=1.5,
        source="published: line through Qwen3-30B-A3B and 235B-A22B, NCCL broadcast in buckets between "
        "nodes of H20 (verl, checkpoint-engine)",
    ),
    "nccl_per_tensor": Transport(
        bytes_per_s=9.56e9, latency_s=9.4,
        source="published: line through the same two models, a broadcast a tensor (verl, no buckets)",
    ),
    "rdma": Transport(
        bytes_per_s=139e9, latency_s=0.0,
        source="published: 1T parameters of a byte in 7.2 s, peer to peer (SGLang, Kimi-K2; NCCL took 53 s)",
    ),
    "ipc": Transport(
        bytes_per_s=8.7e9, latency_s=0.0,
        source="published: Qwen3-30B-A3B in 7 s, handles of CUDA IPC on the same GPUs (slime)",
    ),
    "disk": Transport(
        bytes_per_s=1.0e9, latency_s=1.0,
        source="assumed: a checkpoint written and then read at 2 GB/s each",
    ),
    "http": Transport(
        bytes_per_s=1.25e9, latency_s=0.1, source="assumed: 10 Gbit/s, each engine on a link of its own"
    ),
}  # fmt: skip
assert set(TRANSPORTS) == set(get_args(TransportName))


def sync_s(name: TransportName, weight_bytes: float, bytes_per_s: float | None = None) -> float:
    """Return the seconds of one sync of all weights; `bytes_per_s` replaces the transport's own bandwidth."""
    transport = TRANSPORTS[name]
    return transport.latency_s + weight_bytes / (bytes_per_s or transport.bytes_per_s)


def words(name: TransportName, bytes_per_s: float | None = None) -> str:
    """Return what a sync rests on, as warnings tell it."""
    transport = TRANSPORTS[name]
    rate = f"{(bytes_per_s or transport.bytes_per_s) / 1e9:g} GB/s"
    latency = f" and {transport.latency_s:g} s of latency" if transport.latency_s else ""
    basis = transport.source if name == "assumed" else f"{name}, {transport.source}"
    given = " as given" if bytes_per_s else ""
    return f"{rate}{given}{latency} ({basis})"
