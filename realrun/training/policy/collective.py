"""Sums over the workers of a training run.

vLLM makes torch.distributed's default group of one in the same process, so this makes a process group of its
own over a store of its own. NCCL needs a GPU for each rank; otherwise gloo carries tensors over the host.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT_S = 300.0
BUCKET_ELEMENTS = 64 * 1024 * 1024
BLOCKING = "TORCH_NCCL_BLOCKING_WAIT"


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
        """Join the group; rank 0 holds the store at `host` and `port`. Returns when all ranks are there.

        Nothing here waits longer than `timeout_s` for another rank: then it raises RuntimeError.
        """
        self.size = size
        self._group: Any = None
        self._store: Any = None
        self._nccl = False
        if size == 1:
            return
        wait = timedelta(seconds=timeout_s)
        self._store = _store(host, port, size, rank, wait)
        self._nccl = device == "cuda" and self._own_gpus(rank)
        if self._nccl:
            self._group = _nccl(self._store, rank, size, wait)
            self.sum_([torch.zeros(1, device=device)])  # connects, while all ranks are known to be there
        else:
            self._group = _gloo(self._store, rank, size, host, wait)

    def _own_gpus(self, rank: int) -> bool:
        """Return whether all ranks are on different GPUs."""
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self._store.set(f"gpu/{rank}", str(properties.uuid))
        devices = {self._store.get(f"gpu/{other}") for other in range(self.size)}
        return len(devices) == self.size

    @torch.no_grad()
    def sum_(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each tensor by its sum over all ranks, which must bring tensors of the same shapes.

        All ranks get the same bits. Raises RuntimeError if another rank is gone or does not come in time.
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
        """Leave the group, without waiting for other ranks."""
        if self._nccl and self._group is not None:
            self._group.abort()
        self._group = None
        self._store = None


def _store(host: str, port: int, size: int, rank: int, wait: timedelta) -> Any:
    """Return the group's store, which rank 0 serves at `host` alone.

    Left to itself it would listen on all addresses of the machine, whatever host it is given, and anyone who
    reaches it may read and set its keys.
    """
    if rank:
        return dist.TCPStore(host, port, size, False, timeout=wait)
    with socket.create_server((host, port)) as server:
        # The store closes the descriptor that it is given.
        return dist.TCPStore(host, port, size, True, timeout=wait, master_listen_fd=server.detach())


def _gloo(store: Any, rank: int, size: int, host: str, wait: timedelta) -> Any:
    """Return a gloo group that connects over the address `host`, whatever the machine's name means."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = wait
    return dist.ProcessGroupGloo(store, rank, size, options)


def _nccl(store: Any, rank: int, size: int, wait: timedelta) -> Any:
    """Return an NCCL group whose sums block until they are done.

    A lost rank then raises where the sum was asked for. Otherwise a watchdog thread would end the process.
    The group reads this from the environment when it is made, and groups that others make must not see it.
    """
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = wait
    before = os.environ.get(BLOCKING)
    os.environ[BLOCKING] = "1"
    try:
        return dist.ProcessGroupNCCL(store, rank, size, options)
    finally:
        if before is None:
            del os.environ[BLOCKING]
        else:
            os.environ[BLOCKING] = before
