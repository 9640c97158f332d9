"""Step times of engines that are neither dense nor bf16: `python -m evidence.other_shapes SHAPE OUT`

SHAPE is one of

    moe    Qwen3-30B-A3B with random weights: 128 experts, 8 a token; about five minutes on one H200 (114 GiB)
    fp8    the 7B shape, its weights quantised to FP8 while they are loaded; about four minutes on one H200
    tiny   a mixture of 8 experts in 2 layers, on CPU: a rehearsal of both

Drafts are chains of K = 0 to 4 from an EAGLE-3 head of random weights, accepted at synthetic rates: what
counts are step times, and those hang on neither. Experts are chosen by a router of random weights. The points
lie in OUT/SHAPE.points.json when the command ends, and a call that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from evidence.regimes import tlt

SURVIVAL = [0.8, 0.64, 0.5, 0.4]
# The config.json that Qwen publishes with Qwen3-30B-A3B, without what only training reads.
QWEN3_30B_A3B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
    "num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "vocab_size": 151_936, "tie_word_embeddings": False, "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "hidden_act": "silu", "attention_bias": False,
    "bos_token_id": 151_643, "eos_token_id": 151_645, "torch_dtype": "bfloat16",
}  # fmt: skip
TINY_MOE = QWEN3_30B_A3B | {
    "hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "num_experts": 8,
    "num_experts_per_tok": 2, "vocab_size": 512, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
ON_CUDA: dict[str, Any] = {
    "engine.device": "cuda", "engine.max_running": 128, "engine.max_context_tokens": 5000,
    "engine.graph_batches": [1, 2, 4, 8, 16, 32, 64, 128], "calibration.contexts_tokens": [512, 4096],
    "calibration.most_tokens": 70_000, "calibration.repeats": 4, "calibration.visits": 2,
    "calibration.time_limit_s": 60,
}  # fmt: skip
TINY: dict[str, Any] = {
    "engine.device": "cpu", "engine.max_running": 8, "engine.max_context_tokens": 512,
    "engine.kv_gigabytes": 0.1, "calibration.contexts_tokens": [32, 128], "calibration.repeats": 2,
    "calibration.engine_steps_per_repeat": 2, "calibration.time_limit_s": 60,
}  # fmt: skip


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured: the shape, by a config.json or a name, and the settings of `tlt real calibrate`."""

    name: str = "other-shapes"  # of the calibration
    model: str  # as the calibration names it
    prepared: str = ""  # the shape that is prepared; empty: `config`
    config: dict[str, Any] | None = None
    draft_vocab: int = 32_000
    settings: dict[str, Any]


# Two engines of 57 GiB of weights leave no room for caches and graphs: they are measured one after the other.
SHAPES = {
    "moe": Shape(
        name="vllm-0.32-h200-qwen3-30b-a3b", model="Qwen3-30B-A3B", config=QWEN3_30B_A3B,
        settings=ON_CUDA | {"calibration.apart": True, "engine.memory_fraction": 0.85},
    ),
    "fp8": Shape(
        name="vllm-0.32-h200-qwen2.5-7b-fp8", model="Qwen2.5-7B-FP8", prepared="Qwen2.5-7B",
        settings=ON_CUDA | {"model.quantization": "fp8_per_tensor", "engine.memory_fraction": 0.25},
    ),
    "tiny": Shape(
        model="tiny-moe", config=TINY_MOE, draft_vocab=256, settings=TINY | {"calibration.apart": True}
    ),
}  # fmt: skip


def prepare(shape: Shape, out: Path) -> Path:
    """Write the model folder and its head, unless they are there, and return it."""
    folder = out / shape.model
    if not (folder / "eagle3" / "config.json").is_file():
        named = shape.prepared
        if not named:
            named = str(out / f"{shape.model}.json")
            Path(named).write_text(json.dumps(shape.config, indent=1), encoding="utf-8")
        options = ("--shape-only", "--draft-vocab", str(shape.draft_vocab), "--out", str(folder))
        if not tlt(out, 300, "real", "model", named, *options):
            sys.exit((out / "log.txt").read_text(encoding="utf-8")[-3000:])
    return folder


def settings_of(name: str, folder: Path) -> dict[str, Any]:
    """Return the settings of the calibration."""
    shape = SHAPES[name]
    return {
        "name": shape.name, "model.folder": str(folder / "model"), "model.name": shape.model,
        "model.random_weights": True, "drafter.folder": str(folder / "eagle3"),
        "drafter.ks": [0, 1, 2, 3, 4], "drafter.synthetic_survival": SURVIVAL, "workers.count": 1,
        **shape.settings,
    }  # fmt: skip


def main() -> None:
    """Measure one shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit-s", type=float, default=320, help="stop after this; call again to go on")
    asked = parser.parse_args()
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    settings = settings_of(asked.shape, prepare(SHAPES[asked.shape], out))
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    points = out / f"{asked.shape}.points.json"
    if not points.is_file():
        tlt(out, asked.limit_s, "real", "calibrate", *sets, "--out", str(out / f"{asked.shape}.json"))
    print(f"points: {points if points.is_file() else f'not whole: {points}.partial.jsonl'}")


if __name__ == "__main__":
    main()
