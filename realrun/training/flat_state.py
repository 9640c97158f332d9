"""State of modules and optimizers as flat tensors in safetensors files: nothing in them can be executed.

A file appears under its name only when it is whole. `AsyncWriter` copies to host memory at once and writes in
a thread, so that what is saved may change right afterwards.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import save_file

State = dict[str, torch.Tensor]
MOMENTS = ("exp_avg", "exp_avg_sq", "step")  # what AdamW keeps of a parameter


def write_state(path: Path, state: State) -> None:
    """Write tensors, whole or not at all."""
    _write(path, _snapshot(state))


def _snapshot(state: State) -> State:
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in state.items()}


def _write(path: Path, state: State) -> None:
    new = path.with_name(f"{path.name}.new")
    try:
        save_file(state, new, metadata={"format": "pt"})
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


class AsyncWriter:
    """Writes files in a thread, one after the other."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._last: Future[None] | None = None

    def write(self, path: Path, state: State) -> None:
        """Copy the tensors and write them in the background; raises what the write before raised."""
        self.wait()
        self._last = self._pool.submit(_write, path, _snapshot(state))

    def wait(self) -> None:
        """Wait for what is being written; raises what it raised."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def close(self) -> None:
        """Finish what is being written; raises what it raised."""
        self._pool.shutdown()
        self.wait()


def optimizer_state(optimizer: torch.optim.Optimizer, names: list[str]) -> State:
    """Return the moments of an AdamW over the parameters `names`, in its order, as `name/moment`."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: State = {}
    for name, parameter in zip(names, parameters, strict=True):
        kept = optimizer.state.get(parameter, {})
        state |= {f"{name}/{moment}": kept[moment] for moment in MOMENTS if moment in kept}
    return state


def load_optimizer(optimizer: torch.optim.Optimizer, names: list[str], state: State) -> None:
    """Put back what `optimizer_state` returned; a parameter without moments there starts anew."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for name, parameter in zip(names, parameters, strict=True):
        if f"{name}/step" in state:
            # AdamW counts its steps on the host unless it is fused.
            fused = bool(optimizer.param_groups[0].get("fused"))
            optimizer.state[parameter] = {
                moment: state[f"{name}/{moment}"].to(
                    "cpu" if moment == "step" and not fused else parameter.device
                )
                for moment in MOMENTS
            }
