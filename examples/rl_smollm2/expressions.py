"""Arithmetic over whole numbers, one operation at a time: brackets first, then * and /, then + and -.

The text is what reasoning-gym's basic_arithmetic writes: parts separated by single spaces, numbers with their
sign attached, brackets that may open with a minus, as in `7 - -( 3 * -2 + 1 )`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

OPEN = ("(", "-(")
CLOSE = ")"


class Reduction(NamedTuple):
    """One operation, and the whole expression after it."""

    left: int
    operator: str
    right: int
    value: int
    rest: str


class NotWholeError(ArithmeticError):
    """A division leaves a rest, or divides by zero."""


def reductions(expression: str) -> Iterator[Reduction]:
    """Yield the operations in the order of the rules, leftmost first; the last `rest` is the result.

    Raises NotWholeError at a division that leaves a rest.
    """
    parts = _strip_brackets(expression.split(" "))
    while len(parts) > 1:
        start, end = _innermost(parts)
        at = _next_operator(parts, start, end)
        left, operator, right = int(parts[at - 1]), parts[at], int(parts[at + 1])
        value = apply(left, operator, right)
        parts = _strip_brackets([*parts[: at - 1], str(value), *parts[at + 2 :]])
        yield Reduction(left, operator, right, value, " ".join(parts))


def apply(left: int, operator: str, right: int) -> int:
    """Return left (operator) right; raises NotWholeError for a division with a rest."""
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    assert operator == "/", operator
    if right == 0 or left % right:
        raise NotWholeError(f"{left} / {right}")
    return left // right


def _innermost(parts: list[str]) -> tuple[int, int]:
    """Return the bounds (start, end) of the first bracket that holds no other, or of everything."""
    start = 0
    for place, part in enumerate(parts):
        if part in OPEN:
            start = place + 1
        elif part == CLOSE:
            return start, place
    return 0, len(parts)


def _next_operator(parts: list[str], start: int, end: int) -> int:
    for place in range(start + 1, end, 2):
        if parts[place] in ("*", "/"):
            return place
    return start + 1


def _strip_brackets(parts: list[str]) -> list[str]:
    """Replace brackets around a single number by the number, with the bracket's sign."""
    parts = list(parts)
    place = 0
    while place + 2 < len(parts):
        if parts[place] in OPEN and parts[place + 2] == CLOSE:
            number = int(parts[place + 1])
            parts[place : place + 3] = [str(-number if parts[place] == "-(" else number)]
            place = max(0, place - 1)  # the bracket around it may hold nothing else now
        else:
            place += 1
    return parts
