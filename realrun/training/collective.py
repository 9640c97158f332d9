"""Sums over the workers of a training run.

vLLM makes torch.distributed's default group of one in the same process, so this makes a process group of its
own over a store of its own. NCCL needs a GPU for each rank; otherwise gloo carries tensors over the host.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT_S = 300.0
BUCKET_ELEMENTS = 64 * 1024 * 1024


def free_port() -> int:
    """Return a TCP port of this host that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Collective:
    """One rank of a group of `size`."""

    def __init__(
        self, rank: int, size: int, host: str, port: int, device: str, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Join the group; rank 0 holds the store at `host` and `port`. Returns when all ranks are there."""
        self.size = size
        self._group: Any = None
        self._nccl = False
        if size == 1:
            return
        wait = timedelta(seconds=timeout_s)
        store = dist.TCPStore(host, port, size, rank == 0, timeout=wait)
        self._nccl = device == "cuda" and self._own_gpus(store, rank)
        if self._nccl:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = wait
            self._group = dist.ProcessGroupNCCL(store, rank, size, options)
        else:
            self._group = dist.ProcessGroupGloo(store, rank, size, wait)
        self._store = store

    def _own_gpus(self, store: dist.TCPStore, rank: int) -> bool:
        """Return whether all ranks are on different GPUs."""
        store.set(f"gpu/{rank}", str(torch.cuda.get_device_properties(0).uuid))
        found = {store.get(f"gpu/{other}") for other in range(self.size)}
        return len(found) == self.size

    def sum_(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each tensor by its sum over all ranks, which must bring tensors of the same shapes.

        Raises RuntimeError if another rank is gone.
        """
        if self._group is None:
            return
        bucket: list[torch.Tensor] = []
        elements = 0
        for tensor in tensors:
            if bucket and (
                elements + tensor.numel() > BUCKET_ELEMENTS or tensor.dtype != bucket[0].dtype
                or tensor.device != bucket[0].device
            ):  # fmt: skip
                self._sum_bucket(bucket)
                bucket, elements = [], 0
            bucket.append(tensor)
            elements += tensor.numel()
        if bucket:
            self._sum_bucket(bucket)

    def _sum_bucket(self, tensors: list[torch.Tensor]) -> None:
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        carried = flat.cuda() if self._nccl else flat.cpu()
        self._group.allreduce([carried]).wait()
        summed = carried.to(flat.device)
        for tensor, part in zip(tensors, summed.split([each.numel() for each in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def close(self) -> None:
        """Leave the group."""
        self._group = None
