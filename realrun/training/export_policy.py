"""The policy that a training run came to, as a model folder that engines and transformers read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tlt.realrun.engine.model_files import read_tensors
from tlt.realrun.models.folder import Prepared, Report, copy_all_but_weights, making, save_weights
from tlt.realrun.training.checkpoints import STAMP, Stamp, newest_checkpoint
from tlt.realrun.training.flat_state import MOMENTS
from tlt.realrun.training.trainer import POLICY
from tlt.traces.common.manifest import verify_all
from tlt.traces.runs.runfolder import read_struct
from tltsched.errors import InputError


def export_policy(run: Path, out: Path, report: Report, model_folder: Path | None = None) -> Path:
    """Write the policy of the newest checkpoint of `run`, a policy's folder of `tlt real train`, to `out`.

    Everything but the weights is copied from the model that the run started from: the folder that its
    settings name, or `model_folder` where that has moved. Weights are in the number format of its settings.
    Raises InputError for a folder that is no policy of a training run or has no whole checkpoint, for a model
    folder without config.json, and for an `out` that holds something.
    """
    if not (run / STAMP).is_file():
        raise InputError(
            "RUN_FOLDER", str(run), f"the folder of one policy of `tlt real train`, with {STAMP} in it",
            "give such a folder, e.g. out/train/static-4-online",
        )  # fmt: skip
    stamp = read_struct(run / STAMP, Stamp)
    saved = newest_checkpoint(run)
    if saved is None:
        raise InputError(
            "RUN_FOLDER", f"{run} without a checkpoint", "a run with checkpoint_every above 0",
            "train again with checkpoint_every = 1",
        )  # fmt: skip
    verify_all(saved)
    source = model_folder or Path(stamp.config.model.folder)
    if not (source / "config.json").is_file():
        raise InputError(
            "--model", str(source), "the model folder that the run started from", "say where it is now"
        )
    step = int(saved.name)
    record = Prepared(kind="model", name=stamp.config.model.name, weights=f"trained, {step} RL steps")
    with making(out, record, report) as place:
        if place is not None:
            copy_all_but_weights(source, place)
            save_weights(place, _weights(saved, getattr(torch, stamp.config.model.dtype)))
    return out


def _weights(saved: Path, dtype: Any) -> dict[str, torch.Tensor]:
    """Return the weights of a checkpoint without what the optimizer keeps beside them."""
    state = read_tensors(saved / POLICY)
    return {
        name: tensor.to(dtype) for name, tensor in state.items() if name.rpartition("/")[2] not in MOMENTS
    }
