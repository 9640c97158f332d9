"""What no quantity exceeds, by its unit: names carry their units, so one rule bounds every setting.

The bounds lie far outside of any run. They keep what is absurd (a step of 1e300 s, a billion responses) from
an answer that is nonsense, or from all memory of the machine.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tltsched.errors import InputError

MOST_FILE_BYTES = 1 << 28  # of a file of settings, step times or results as JSON
MOST_WHOLE, MOST_FLOAT = 2**31 - 1, 1e15
# End of a name -> least above 0, most, in words. The first that fits counts.
BY_UNIT: tuple[tuple[str, float, float, str], ...] = (
    ("seed", 0, 2**63 - 1, "whole numbers below 2^63"),
    ("_bytes_per_s", 1e3, 1e15, "1e3 to 1e15 bytes a second"),
    ("_per_s", 1e-3, 1e9, "0, or 1e-3 to 1e9 a second"),
    ("_s_per_response", 0, 1e6, "at most 1e6 s"),
    ("_s_per_layer", 0, 10, "at most 10 s"),
    ("_s_per_draft_pass", 0, 10, "at most 10 s"),
    ("_efficiency", 1e-3, 1, "0.001 to 1"),
    ("_bytes", 0, 1e15, "at most 1e15 bytes"),
    ("drift_per_step", 0, 10, "-10 to 10"),
    ("drift_per_update", 0, 10, "-10 to 10"),
    ("prompts_per_step", 0, 1_000_000, "at most 1,000,000"),
    ("samples_per_prompt", 0, 65_536, "at most 65,536"),
    ("max_response_tokens", 0, 1 << 24, "at most 16,777,216 tokens"),
    ("_slope", 0, 10, "-10 to 10"),
    ("_excess", 0, 10, "-10 to 10"),
    ("_spread", 0, 10, "at most 10"),
    ("_exponent", 0, 1e3, "at most 1,000"),
    ("scale", 1e-4, 1e4, "1e-4 to 1e4"),
    ("_s", 0, 1e7, "at most 1e7 s, which is 116 days"),
    ("gpus", 0, 131_072, "at most 131,072 GPUs"),
    ("tp", 0, 1_024, "at most 1,024"),
    ("count", 0, 4_096, "at most 4,096"),
    ("logprob_passes", 0, 100, "at most 100"),
    ("max_running", 0, 65_536, "at most 65,536 requests"),
    ("graph_max_requests", 0, 65_536, "at most 65,536 requests"),
    ("depth", 0, 1_024, "at most 1,024"),
    ("k", 0, 1_024, "at most 1,024"),
    ("steps", 0, 1_000_000, "at most 1,000,000"),
)


def require_bounds(value: object, where: str = "", name: str = "") -> None:
    """Raise InputError for the first number in a struct that no quantity of its unit can have."""
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            require_bounds(getattr(value, field), f"{where}.{field}" if where else field, field)
    elif isinstance(value, dict):
        for inner in value.values():
            require_bounds(inner, where, name)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            require_bounds(inner, where, name)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        _require(value, where, name)


def _require(value: float, where: str, name: str) -> None:
    least, most = 0.0, MOST_WHOLE if isinstance(value, int) else MOST_FLOAT
    allowed = f"numbers up to {most:g}"
    for end, low, high, words in BY_UNIT:
        if name == end.lstrip("_") or name.endswith(end if end.startswith("_") else f"_{end}"):
            least, most, allowed = low, high, words
            break
    if not (value == 0 or least <= abs(value) <= most):  # NaN is refused too
        raise InputError(where, value, allowed, "give a number that such a quantity can have")


def require_size(path: Path, field: str) -> None:
    """Raise InputError for a file that is too large to be settings, step times or a result."""
    if path.is_file() and path.stat().st_size > MOST_FILE_BYTES:
        allowed = f"at most {MOST_FILE_BYTES >> 20} MiB"
        raise InputError(field, f"{path} of {path.stat().st_size:,} bytes", allowed, "check what it is")
