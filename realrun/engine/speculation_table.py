"""A table of K by batch size as vLLM's own code reads it."""

from __future__ import annotations

import os
from typing import Any

from tlt.realrun.engine.vllm_compat import EVERYWHERE, hide_cuda_companions


def parse_speculation(settings: dict[str, Any], max_running: int) -> list[int]:
    """Return K at each batch size as vLLM reads it from a speculative_config: entry b is that of batch b.

    Entry 0 stands for nothing. vLLM's own configuration class checks the names and values, and its own code
    expands the table. The drafter is not loaded: the class is given a method that needs none, and the method
    in `settings` is checked by its type. Raises ValueError with vLLM's words.
    """
    for name, value in EVERYWHERE.items():
        os.environ.setdefault(name, value)
    hide_cuda_companions()
    from pydantic import TypeAdapter
    from vllm.config.speculative import SpeculativeConfig, SpeculativeMethod
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    TypeAdapter(SpeculativeMethod).validate_python(settings.get("method"))
    config = SpeculativeConfig(**(settings | {"method": "ngram", "model": None}))
    return list(
        build_dynamic_sd_schedule_lookup(
            config.num_speculative_tokens_per_batch_size, max_running, config.num_speculative_tokens
        )
    )
