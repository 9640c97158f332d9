"""Values of records as frameworks write them, turned into numbers and texts or refused with a reason."""

from __future__ import annotations

import math
import re
from hashlib import blake2b
from typing import Any

import msgspec

EXACT_FLOAT = 2.0**53  # whole numbers below are exact as float64
_WRAPPED = re.compile(
    r"(?:np|numpy)\.(?:float|int|uint|bfloat)\d+\(([^()]*)\)|(?:tensor|array)\(([^(),]*)[^()]*\)"
)


def single(value: Any) -> Any:
    """Return the element of a list of one (frameworks write batches of one so), else the value itself."""
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value


def whole(value: Any) -> int | None:
    """Return a whole number, or None if `value` is none. True and False are none."""
    value = single(value)
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT_FLOAT:
        return int(value)
    return None


def number(value: Any) -> float | None:
    """Return a finite number, or None if `value` is none."""
    value = single(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def total(value: Any) -> float | None:
    """Return a number, or the sum of a list of them (rewards by token); None if `value` is neither."""
    if not isinstance(value, list):
        return number(value)
    parts = [part for part in map(number, value) if part is not None]
    return number(sum(parts)) if parts and len(parts) == len(value) else None


def number_in(text: str) -> float | None:
    """Return the number that a log prints, also as np.float64(x) or tensor(x); None if it is none."""
    text = text.strip().rstrip(",")
    wrapped = _WRAPPED.fullmatch(text)
    if wrapped:
        text = wrapped.group(1) or wrapped.group(2) or ""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def text_of(value: Any) -> str | None:
    """Return a text, or the contents of a list of chat messages joined; None if `value` is neither."""
    value = single(value) if not isinstance(single(value), dict) else value
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        return None
    parts = []
    for message in value:
        content = message.get("content") if isinstance(message, dict) else None
        if content is None and isinstance(message, dict) and "role" in message:
            content = ""  # a message of tool calls alone
        if isinstance(content, list):
            content = "".join(part["text"] for part in content if _is_text_part(part))
        if not isinstance(content, str):
            return None
        parts.append(content)
    return "\n".join(parts)


def message_turns(value: Any) -> list[tuple[str, str]]:
    """Return (what others said, what the model wrote) in the order of chat messages; empty for one turn.

    A message without a role is the model's. What is said after the model's last message is left out.
    """
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        return []
    pairs: list[tuple[str, str]] = []
    said: list[str] = []
    own: list[str] = []
    for message in value:
        content = text_of([message])
        if content is None:
            return []
        if message.get("role", "assistant") == "assistant":
            own.append(content)
            continue
        if own:
            pairs.append(("\n".join(said), "\n".join(own)))
            said, own = [], []
        said.append(content)
    if own:
        pairs.append(("\n".join(said), "\n".join(own)))
    return pairs if len(pairs) > 1 or (pairs and pairs[0][0]) else []


def _is_text_part(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def block_ids(value: Any) -> tuple[int, ...]:
    """Return the ids of a prompt's blocks, whole numbers of any size; empty if `value` is something else."""
    if not isinstance(value, list) or not all(type(one) is int for one in value):
        return ()
    return tuple(value)


def key_of(value: Any) -> int | str | None:
    """Return what tells groups apart: a whole number or a text; None if `value` is neither."""
    found = whole(value)
    return single_text(value) if found is None else found


def single_text(value: Any) -> str | None:
    """Return a text, else None."""
    value = single(value)
    return value if isinstance(value, str) else None


def excerpt_of(raw: bytes, limit: int = 120) -> str:
    """Return at most `limit` characters of `raw` in which nothing can act on a terminal."""
    text = raw[: 4 * limit].decode("utf-8", "backslashreplace")
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: 2 * limit])
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."


def digest(text: str | bytes) -> int:
    """Return a hash of 64 bits that stands for a text: equal for equal texts, never 0."""
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little", signed=True) or 1


def encoded(value: Any) -> str:
    """Return JSON text of a value: equal for equal prompts."""
    return msgspec.json.encode(value, order="sorted").decode()
