"""How a draft configuration is written, in configuration files and on the command line.

It is written
    as text: `off`, a chain length such as `4`, or a tree such as `8_4_48` (depth, top-k, tokens to verify);
    with vLLM's key: a table {num_speculative_tokens = 4}, or the text `num_speculative_tokens=4`;
    with SGLang's keys: a table {speculative_num_steps = 8, speculative_eagle_topk = 4,
        speculative_num_draft_tokens = 48}, or the text with semicolons between `key=number`.

What counts the root, the last token that is already certain: vLLM's num_speculative_tokens does not, a K of 4
has the target read five tokens of a request. SGLang's speculative_num_draft_tokens does: it selects that many
less one out of what was drafted and puts the root in front, and with a top-k of 1 it is speculative_num_steps
+ 1. So it is `verify_tokens` here, and speculative_num_steps is `depth`. SGLang wants all three or none.
"""

from __future__ import annotations

from tltsched.draft_config import OFF, DraftConfig, chain
from tltsched.errors import InputError, unknown_name

WrittenDraftConfig = int | str | dict[str, int]
"""A draft configuration as users write it."""
VLLM_KEY = "num_speculative_tokens"
SGLANG_KEYS = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
KEYS = f"{VLLM_KEY} (vLLM), or {', '.join(SGLANG_KEYS)} together (SGLang)"
KEYS_FIX = "give the keys of one engine"
FORMS = "off, K, depth_topk_verify such as 8_4_48, or an engine's own keys"


def parse_draft_config(written: WrittenDraftConfig) -> DraftConfig:
    """Read a draft configuration in any form of the module's text; raises InputError on anything else."""
    if isinstance(written, dict):
        return _of_keys(written)
    text = str(written).strip()
    if text == "off":
        return OFF
    if "=" in text:
        return _of_keys(dict(_assignment(part, text) for part in text.split(";")))
    parts = text.split("_")
    if not all(part.isdecimal() for part in parts) or len(parts) not in (1, 3):
        raise InputError("draft_config", written, FORMS, "correct the draft configuration")
    numbers = [int(part) for part in parts]
    return chain(numbers[0]) if len(numbers) == 1 else DraftConfig(*numbers)


def canonical(written: WrittenDraftConfig) -> str:
    """Return the shortest text of a draft configuration, in which it is kept; raises InputError."""
    return str(parse_draft_config(written))


def _assignment(part: str, text: str) -> tuple[str, int]:
    key, _, number = (side.strip() for side in part.partition("="))
    if not number.isdecimal():
        raise InputError("draft_config", text, "KEY=NUMBER;KEY=NUMBER", f"give {key or 'a key'} a number")
    return key, int(number)


def _of_keys(table: dict[str, int]) -> DraftConfig:
    """Read a table with the keys of one engine, all of them."""
    known = (VLLM_KEY, *SGLANG_KEYS)
    for key, number in table.items():
        if key not in known:
            raise unknown_name("draft_config key", key, known, KEYS_FIX)
        if number < 0:
            raise InputError(key, number, "0 or more", "correct the draft configuration")
    if set(table) == {VLLM_KEY}:
        return chain(table[VLLM_KEY])
    if set(table) != set(SGLANG_KEYS):
        raise InputError("draft_config keys", ", ".join(table), KEYS, KEYS_FIX)
    steps, topk, tokens = (table[key] for key in SGLANG_KEYS)
    if steps < 1:
        raise InputError(SGLANG_KEYS[0], steps, "1 or more", "write off to draft nothing")
    drafted = topk + (steps - 1) * topk**2
    if topk > 1 and tokens > 1 + drafted:
        raise InputError(SGLANG_KEYS[2], tokens, f"at most 1 + the {drafted} that are drafted", "lower it")
    return DraftConfig(steps, topk, tokens)
