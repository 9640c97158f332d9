"""Drafts without a model: what the other responses to the same prompt said after the same words.

The responses of a group answer one prompt, so they share names, numbers and whole sentences. A response's
last tokens are looked up in the other members of its group, as far as these have been generated, and what
follows there is the draft. TLT's paper drafts like this while it has no trained drafter; its released code
has the n-gram drafter of its server alone.
"""

from __future__ import annotations

from collections.abc import Sequence

SHORTEST = 2  # tokens that must match; one alone says too little
LONGEST = 8  # tokens beyond which a longer match is no better evidence
RECENT = 8  # newest places looked at in each member, so that a response that repeats itself stays cheap


class GroupDrafts:
    """Responses by group and member, indexed by their runs of `shortest` tokens."""

    def __init__(self, shortest: int = SHORTEST, longest: int = LONGEST) -> None:
        """A draft follows a match of `shortest` to `longest` tokens."""
        self.shortest = shortest
        self.longest = longest
        self._groups: dict[int, _Group] = {}

    def add(self, group: int, member: int, tokens: Sequence[int]) -> None:
        """Append new tokens to a member's response."""
        self._groups.setdefault(group, _Group(self.shortest)).add(member, tokens)

    def propose(self, group: int, member: int, k: int) -> list[int]:
        """Return up to `k` tokens that may follow the member's response; none if nothing matches.

        The longest match in another member wins; of several, one with the most usual next token.
        """
        known = self._groups.get(group)
        if known is None or k < 1 or len(known.members.get(member, ())) < self.shortest:
            return []
        own, best, followers = known.members[member], 0, dict[int, list[list[int]]]()
        for other, end in known.places(member):
            tokens = known.members[other]
            length = _match(own, tokens, end, self.shortest, self.longest)
            if length > best:
                best, followers = length, {}
            if length == best:
                followers.setdefault(tokens[end], []).append(tokens[end : end + k])
        return max(followers.values(), key=len)[-1] if followers else []

    def clear(self) -> None:
        """Forget all responses."""
        self._groups.clear()


class _Group:
    def __init__(self, shortest: int) -> None:
        self.members: dict[int, list[int]] = {}
        self._shortest = shortest
        self._ends: dict[tuple[int, ...], dict[int, list[int]]] = {}  # run -> member -> places after it

    def add(self, member: int, tokens: Sequence[int]) -> None:
        whole = self.members.setdefault(member, [])
        before = len(whole)
        whole += tokens
        for end in range(max(before + 1, self._shortest), len(whole) + 1):
            run = tuple(whole[end - self._shortest : end])
            self._ends.setdefault(run, {}).setdefault(member, []).append(end)

    def places(self, member: int) -> list[tuple[int, int]]:
        """Return (other member, place) where the member's last tokens stand and something follows."""
        run = tuple(self.members[member][-self._shortest :])
        return [
            (other, end)
            for other, ends in self._ends[run].items()
            if other != member
            for end in ends[-RECENT:]
            if end < len(self.members[other])
        ]


def _match(own: list[int], tokens: list[int], end: int, shortest: int, longest: int) -> int:
    """Return how many tokens before `end` are those at the end of `own`; `shortest` are known to be."""
    length, most = shortest, min(longest, len(own), end)
    while length < most and tokens[end - length - 1] == own[-length - 1]:
        length += 1
    return length
