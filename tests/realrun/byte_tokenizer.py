"""A tokenizer whose tokens are bytes, with a chat template, for model folders of tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.realrun.small_models import need
from tlt.realrun.engine import vllm_compat

CHAT = (
    "{% for message in messages %}<s>{{ message['role'] }}\n{{ message['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


def write_tokenizer(folder: Path) -> Path:
    """Write the tokenizer into a model folder and return that; without transformers the test is skipped."""
    need("transformers", "tokenizers")
    vllm_compat.hide_cuda_companions()
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = ["<pad>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)
    fast.chat_template = CHAT
    fast.save_pretrained(folder)
    end = {"eos_token_id": letters.index(SPECIAL["eos_token"])}
    (folder / "generation_config.json").write_text(json.dumps(end), encoding="utf-8")
    return folder


def model_folder(folder: Path) -> Path:
    """Return a folder with the tokenizer and a vocabulary, but without weights."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"vocab_size": 512, "model_type": "llama"}', encoding="utf-8")
    return write_tokenizer(folder)


def tokens(folder: Path, text: str) -> tuple[int, ...]:
    """Return the ids of a text."""
    from tokenizers import Tokenizer

    tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return tuple(tokenizer.encode(text).ids)
