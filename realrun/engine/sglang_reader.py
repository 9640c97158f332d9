"""Reads an adaptive configuration with SGLang's own code. Run by SGLang's interpreter, never imported.

    ENVIRONMENT/bin/python sglang_reader.py FILE LARGEST_BATCH

Prints [version, [0, K at batch 1, K at batch 2, ...]] as JSON.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys


def main(file: str, most: int) -> None:
    """Print what SGLang would draft at each batch before anything was accepted."""
    params = importlib.import_module("sglang.srt.speculative.adaptive_spec_params")
    read = params.AdaptiveSpeculativeParams(max(params.resolve_candidate_steps_from_config(file)), file)
    lookup = [0, *(read.get_steps_for_batch(batch) for batch in range(1, most + 1))]
    print(json.dumps([importlib.metadata.version("sglang"), lookup]))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
