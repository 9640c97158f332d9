"""Warnings of several policies as one list: what is said alike of several is said once."""

from __future__ import annotations

from collections.abc import Iterable

from tlt.analysis.comparison.compare import ComparisonTable

FRAME_SHARE = 0.45  # of the words of a warning; with fewer in common two warnings say different things


def shared_warnings(table: ComparisonTable) -> list[str]:
    """Return every warning once, with the policies that it concerns unless it concerns all.

    Warnings that differ in one place, such as a number, become one that names all that stands there, each
    with its policies.
    """
    policies_of: dict[str, list[str]] = {}
    for row in table.rows:
        for warning in row.warnings:
            policies_of.setdefault(warning, []).append(row.policy)
    everyone = len(table.rows)
    return [*table.warnings, *(_said(alike, policies_of, everyone) for alike in _alike(policies_of))]


def _alike(warnings: Iterable[str]) -> list[list[str]]:
    """Return the warnings in groups whose members differ in one place."""
    groups: list[list[str]] = []
    for warning in warnings:
        for group in groups:
            if _frame([*group, warning]) is not None:
                group.append(warning)
                break
        else:
            groups.append([warning])
    return groups


def _frame(warnings: list[str]) -> tuple[int, int] | None:
    """Return how many words at the start and at the end all have in common; None: too few of one of them.

    Each keeps a word or more between them.
    """
    words = [warning.split(" ") for warning in warnings]
    shortest, longest = min(map(len, words)), max(map(len, words))
    start = min(_common(words), shortest - 1)
    end = min(_common([each[::-1] for each in words]), shortest - 1 - start)
    return (start, end) if start and end and start + end >= FRAME_SHARE * longest else None


def _common(texts: list[list[str]]) -> int:
    """Return how many words at the start all have in common."""
    return next(
        (at for at, words in enumerate(zip(*texts, strict=False)) if len(set(words)) > 1),
        min(map(len, texts)),
    )


def _said(group: list[str], policies_of: dict[str, list[str]], everyone: int) -> str:
    """Return one line of warnings that are alike: what stands in the place of each, with its policies."""
    if len(group) == 1:
        (warning,), policies = group, policies_of[group[0]]
        return warning if len(policies) == everyone else f"{', '.join(policies)}: {warning}"
    frame = _frame(group)
    assert frame is not None, group
    start, end = frame
    parts = []
    for warning in group:
        words, policies = warning.split(" "), policies_of[warning]
        inside = " ".join(words[start : len(words) - end])
        parts.append(inside if len(policies) == everyone else f"{inside} ({', '.join(policies)})")
    first = group[0].split(" ")
    return " ".join([*first[:start], ", ".join(parts), *first[len(first) - end :]])
