"""Drafts from the other responses of a group, in vLLM's prompt-lookup drafter on CPU.

Only attributes of vLLM's objects are used here, so that this file loads without vLLM. On CUDA the lookup runs
inside the engine's graphs, and vLLM's own serves there: it knows the context of a request alone.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tlt.realrun.engine.group_drafts import GroupDrafts


class Member(msgspec.Struct):
    """One request of a group, and how much of its context the store has."""

    group: int
    number: int
    stored_tokens: int


class GroupLookup:
    """Stands before the drafter of a model runner: the group's drafts if it has any, else the drafter's."""

    def __init__(self, runner: Any) -> None:
        """`runner` is vLLM's model runner with the drafter of method "ngram"."""
        self._batch = runner.input_batch
        self._most_tokens = runner.drafter.max_model_len
        self._alone = runner.drafter.propose
        self._drafts = GroupDrafts()
        self._members: dict[str, Member] = {}
        runner.drafter.propose = self._propose

    def join(self, name: str, group: int, prompt_tokens: int) -> None:
        """Make a request, by vLLM's name for it, a member of a group.

        Its prompt is in the context of every member, so only the end of it is stored: a match may reach back.
        """
        first = max(0, prompt_tokens - self._drafts.longest)
        self._members[name] = Member(group, len(self._members), first)

    def clear(self) -> None:
        """Forget all groups."""
        self._members.clear()
        self._drafts.clear()

    def _propose(self, k: int, sampled: Any, counts: Any, tokens: Any, slot_mappings: Any = None) -> Any:
        """Return drafts for each row of the batch.

        `sampled` holds each row's newest tokens, none in the middle of a prompt; `tokens` [rows, longest] its
        context, `counts` [rows] the length of that.
        """
        drafts = self._alone(k, sampled, counts, tokens, slot_mappings=slot_mappings)
        names = self._batch.req_ids
        rows = [
            (row, self._members[names[row]])
            for row, newest in enumerate(sampled)
            if newest and names[row] in self._members
        ]
        for row, member in rows:
            count = int(counts[row])
            self._drafts.add(member.group, member.number, tokens[row, member.stored_tokens : count].tolist())
            member.stored_tokens = max(member.stored_tokens, count)
        for row, member in rows:
            room = min(k, self._most_tokens - int(counts[row]))
            drafts[row] = self._drafts.propose(member.group, member.number, room) or drafts[row]
        return drafts
