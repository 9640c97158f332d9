"""Worked solutions: lines of steps, then the answer, for the families whose steps can be derived here.

They are what supervised warm-up teaches. Every line holds one small operation on numbers that stand in the
line before it or in the question, so that a small model can learn it. The answer is checked against the
problem's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from tlt.realrun.problems.questions import MARK
from tltsched.errors import look_up

from .expressions import apply, reductions
from .families import Problem

Steps = tuple[list[str], int]  # lines, and the result
_TERM = re.compile(r"(\d+)|(?:(\d+)\*)?([a-z])")


def solve(problem: Problem) -> str:
    """Return the worked solution of a problem; raises InputError for a family without one."""
    lines, result = look_up(WORKED, "tasks.settings.names", problem.task)(
        msgspec.json.decode(problem.metadata)
    )
    assert str(result) == problem.answer, (problem, lines)
    return "\n".join([*lines, f"{MARK} {result}"])


def require_worked(names: tuple[str, ...]) -> None:
    """Raise InputError unless every family has worked solutions."""
    for name in names:
        look_up(WORKED, "tasks.settings.names", name)


def chain_sum(facts: dict[str, Any]) -> Steps:
    """Running totals."""
    first, *rest = facts["expression"].split(" ")
    total, lines = int(first), []
    for operator, term in zip(rest[::2], rest[1::2], strict=True):
        value = apply(total, operator, int(term))
        lines.append(f"{total} {operator} {term} = {value}")
        total = value
    return lines, total


def basic_arithmetic(facts: dict[str, Any]) -> Steps:
    """One operation at a time, and what is left of the expression after each."""
    lines: list[str] = []
    rest = facts["expression"]
    for step in reductions(rest):
        if step.operator == "*" and min(abs(step.left), abs(step.right)) >= 10:
            lines += _product(abs(step.left), abs(step.right))
        lines.append(f"{step.left} {step.operator} {step.right} = {step.value}")
        rest = step.rest
        lines.append(f"= {rest}")
    return lines, int(rest)


def products(facts: dict[str, Any]) -> Steps:
    """Long multiplication: digit by digit with a carry, then sums of the rows."""
    left, right = map(int, facts["expression"].split(" * "))
    return [*_product(left, right), f"{left} * {right} = {left * right}"], left * right


def _product(left: int, right: int) -> list[str]:
    """Return the lines of a long multiplication; none if a table of single digits has it."""
    if left < 10 and right < 10:
        return []
    lines, total = [], 0
    for place, digit in enumerate(reversed(str(right))):
        if digit == "0":
            continue
        row = left * int(digit) * 10**place
        lines.append(f"{left} * {digit}{'0' * place}: {_row(left, int(digit))} -> {row}")
        if total:
            lines.append(f"{total} + {row} = {total + row}")
        total += row
    return lines


def _row(left: int, digit: int) -> str:
    """Return the products of one digit with the digits of `left` from the right, the carry added to each."""
    carry, parts = 0, []
    for place in reversed(str(left)):
        value = int(place) * digit + carry
        parts.append(f"{place}*{digit}+{carry}={value}")
        carry = value // 10
    return ", ".join(parts)


def simple_equations(facts: dict[str, Any]) -> Steps:
    """Move the constant over, then divide."""
    left, right = facts["equation"].split(" = ")
    factor, constant = _linear(left, facts["variable"])
    total, lines = int(right), [facts["equation"]]
    unknown = facts["variable"]
    if constant:
        side = f"{total} {'-' if constant > 0 else '+'} {abs(constant)}"
        total -= constant
        lines += [f"{_times(factor, unknown)} = {side}", f"{_times(factor, unknown)} = {total}"]
    if factor < 0:
        factor, total = -factor, -total
        lines.append(f"{_times(factor, unknown)} = {total}")
    if factor == 1:
        return lines, total
    lines += [f"{unknown} = {total} / {factor}", *_quotient(total, factor)]
    value = apply(total, "/", factor)
    return [*lines, f"{unknown} = {value}"], value


def _times(factor: int, unknown: str) -> str:
    if abs(factor) == 1:
        return unknown if factor > 0 else f"-{unknown}"
    return f"{factor}*{unknown}"


def _linear(text: str, unknown: str) -> tuple[int, int]:
    """Return (factor of the unknown, constant) of a sum of terms such as `5*x - 3` or `39 - x`."""
    factor = constant = 0
    sign = 1
    for part in text.split(" "):
        if part in ("+", "-"):
            sign = 1 if part == "+" else -1
            continue
        negative = part.startswith("-")
        match = _TERM.fullmatch(part.removeprefix("-"))
        assert match is not None, text
        assert match[3] in (None, unknown), text
        worth = -sign if negative else sign
        if match[1]:
            constant += worth * int(match[1])
        else:
            factor += worth * int(match[2] or 1)
    return factor, constant


def _quotient(total: int, factor: int) -> list[str]:
    """Return the lines of a long division of positive numbers, from the first digit that is not 0."""
    lines: list[str] = []
    rest = 0
    for digit in str(total):
        part = rest * 10 + int(digit)
        quotient, rest = divmod(part, factor)
        if quotient or lines:
            product = quotient * factor
            lines.append(f"{part}: {quotient} * {factor} = {product}, {part} - {product} = {rest}")
    return lines


def collatz(facts: dict[str, Any]) -> Steps:
    """The numbers on the way to 1, counted."""
    number = int(facts["start"])
    lines: list[str] = []
    while number != 1:
        number = 3 * number + 1 if number % 2 else number // 2
        lines.append(f"{len(lines) + 1}: {number}")
    return lines, len(lines)


WORKED: dict[str, Callable[[dict[str, Any]], Steps]] = {
    "chain_sum": chain_sum,
    "basic_arithmetic": basic_arithmetic,
    "simple_equations": simple_equations,
    "products": products,
    "collatz": collatz,
}
