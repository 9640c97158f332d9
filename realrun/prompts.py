"""What the model is asked, as token ids.

A model with a tokenizer gets small arithmetic and algebra problems in its own chat template, made by
reasoning-gym from a seed. A model of random weights gets random tokens.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tlt.realrun.config import RealConfig
from tlt.realrun.engine import vllm_compat
from tlt.realrun.engine.model_files import read_config
from tltsched.errors import InputError

# Tasks of reasoning-gym that a small model can attempt and that are short to state.
TASKS = ("chain_sum", "basic_arithmetic", "simple_equations", "gsm_symbolic")
Prompt = tuple[int, ...]


def make_prompts(config: RealConfig, tokens: Sequence[int], rng: np.random.Generator) -> list[Prompt]:
    """Return a prompt for each of `tokens`, for the model of `config`.

    Random ones are as long as `tokens` says; problems are as long as they are. Raises InputError if the
    folder holds no model, or problems are wanted and reasoning-gym is not installed.
    """
    folder = Path(config.model.folder)
    if config.model.random_weights or not (folder / "tokenizer.json").is_file():
        if len(set(tokens)) == 1:
            return random_prompts(vocabulary(folder), len(tokens), tokens[0], rng)
        return [random_prompts(vocabulary(folder), 1, each, rng)[0] for each in tokens]
    return problem_prompts(folder, len(tokens), rng)


def vocabulary(folder: Path) -> int:
    """Return the vocabulary size of a model folder; raises InputError if its config.json tells none."""
    size: int = read_config(folder, "vocab_size")["vocab_size"]
    return size


def random_prompts(vocab: int, count: int, tokens: int, rng: np.random.Generator) -> list[Prompt]:
    """Return `count` prompts of `tokens` random ids; 0 is left out, which ends a text."""
    return [tuple(row) for row in rng.integers(1, vocab, (count, tokens)).tolist()]


def problem_prompts(folder: Path, count: int, rng: np.random.Generator) -> list[Prompt]:
    """Return `count` problems in the chat template of the tokenizer in `folder`, one task after the other."""
    if importlib.util.find_spec("reasoning_gym") is None:
        fix = "pip install reasoning-gym, or set model.random_weights"
        raise InputError(
            "prompts", "no reasoning_gym package", "reasoning-gym for a model with a tokenizer", fix
        )
    vllm_compat.hide_cuda_companions()
    import reasoning_gym
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    each = -(-count // len(TASKS))
    sets = [reasoning_gym.create_dataset(task, size=each, seed=int(rng.integers(2**31))) for task in TASKS]
    questions = [sets[i % len(TASKS)][i // len(TASKS)]["question"] for i in range(count)]
    return [
        tuple(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
            )
        )
        for question in questions
    ]
