"""TRL's GRPO with its vLLM in the same process, on a CPU: `python grpo_cpu.py MODEL_FOLDER [greedy]`

Nothing here names the plugin: the environment variable TLT_PLUGIN alone decides whether it watches, advises,
or is in charge. TRL is used as it is installed. What a CPU needs beyond it stands in `prepare_cpu`. Prints a
digest of the tokens of each generation, so that two runs can be held against each other.
"""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any

PROMPTS, GENERATIONS, STEPS = 2, 4, 3
MOST_TOKENS = 64
QUESTIONS = (  # PROMPTS a step; answers differ in length, so that the batch falls
    "What is 3 + 4? Answer with the number alone.",
    "Count from 1 to 20.",
    "Name a colour. One word.",
    "Say the days of the week.",
    "Is water wet? Answer yes or no.",
    "List five animals.",
)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",  # without it, and the next, one engine step takes minutes
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCH_COMPILE_DISABLE": "1",  # TRL cannot ask for an eager engine
}


def prepare_cpu() -> None:
    """Set what the CPU engine needs, before anything is imported that reads it."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in (
        "torchvision",
        "torchaudio",
        "torchcodec",
    ):  # CUDA builds, which cannot load beside a CPU torch
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    import vllm._custom_ops

    # oneDNN packs the weights when they are loaded and frees them: TRL could write none afterwards.
    vllm._custom_ops._supports_onednn = False


def reward(completion_ids: list[list[int]], **_rest: Any) -> list[float]:
    """Prefer responses of many different tokens, and print which ones there were."""
    text = ";".join(",".join(map(str, ids)) for ids in completion_ids)
    print(f"tokens {hashlib.sha256(text.encode()).hexdigest()[:16]} lengths {[*map(len, completion_ids)]}")
    return [len(set(ids)) / MOST_TOKENS for ids in completion_ids]


def main(model: str, greedy: bool) -> None:
    """Train a few steps."""
    prepare_cpu()
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    prompts = [
        f"Count from {first} to {first + 9}: {first}, {first + 1}," for first in range(PROMPTS * STEPS)
    ]
    config = GRPOConfig(
        output_dir="out/trl",
        use_cpu=True,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_max_model_length=192,
        per_device_train_batch_size=PROMPTS * GENERATIONS,
        num_generations=GENERATIONS,
        max_completion_length=MOST_TOKENS,
        max_steps=STEPS,
        learning_rate=1e-5,
        generation_kwargs={"temperature": 0.0} if greedy else {},
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        shuffle_dataset=False,
        bf16=False,
        seed=0,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
    )
    trainer.train()
    print(
        "steps",
        trainer.state.global_step,
        "loss",
        [round(row["loss"], 4) for row in trainer.state.log_history if "loss" in row],
    )


if __name__ == "__main__":
    main(sys.argv[1], "greedy" in sys.argv[2:])
