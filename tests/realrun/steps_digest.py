"""What identifies the prompts and rewards of the first steps of some problems."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from tests.realrun.byte_tokenizer import tokens
from tlt.realrun.problems.protocol import Problems

SAID = ("Answer: 4", "so it is 8.\nAnswer: 8.", "Answer: 1,0", "none", "", "Answer: -5")
STEPS, PROMPTS, SEED = 3, 6, 3


def digest(problems: Problems, folder: Path, right: Callable[[int, int], str | None]) -> str:
    """Return a hash over prompts and over the rewards of SAID and of the right answer, if there is one."""
    rows = []
    for step in range(STEPS):
        for group, prompt in enumerate(problems.prompts(step)):
            answer = right(step, group)
            said = SAID if answer is None else (*SAID, f"Answer: {answer}")
            scores = [problems.score(step, group, tokens(folder, text)) for text in said]
            rows.append([step, group, list(prompt), scores])
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
