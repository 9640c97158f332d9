"""A forward and backward pass on a GPU as one CUDA graph.

A head is some thousand small kernels a batch, which a busy host launches more slowly than a GPU runs them.
Batches of one shape need launching once: in live runs of SmolLM2-135M on H200 one of 4,096 tokens takes
30 ms, as long as its kernels do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tlt.realrun.training.head.loss import Batch

WARM_UP_ROUNDS = 2  # libraries choose kernels and make workspaces, which cannot be done in a capture


class CapturedPass:
    """Replays what `run` did with one batch; gradients are written over, not added to."""

    def __init__(
        self, run: Callable[[Batch], torch.Tensor], parameters: list[torch.nn.Parameter], batch: Batch
    ) -> None:
        """Record `run`, which returns a loss [] after its backward pass; `batch` is on the GPU.

        `parameters` are those that get gradients, and have none now.
        """
        self.batch = batch
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP_ROUNDS):
                run(batch)
                self._forget(parameters)
        torch.cuda.current_stream().wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads, such as the writer of heads, go on meanwhile.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._loss = run(batch)

    @staticmethod
    def _forget(parameters: list[torch.nn.Parameter]) -> None:
        """Have the capture make the gradients in its own memory, where replays write them again."""
        for parameter in parameters:
            parameter.grad = None

    def __call__(self) -> torch.Tensor:
        """Return the loss [] of what `batch` holds now; gradients are those of it alone."""
        self._graph.replay()
        return self._loss
