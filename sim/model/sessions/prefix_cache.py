"""What is left in the KV cache of requests that do not run: prefixes in blocks, the longest unused go first.

As vLLM's: a block that nobody uses stays findable until its place is needed. Whoever leaves frees the last
block first, so that of what was freed longest ago the end goes first. The prompt that the sessions of a group
begin with lies there once, and is free when the last of them that runs has left.
"""

from __future__ import annotations

import math

from tlt.sim.model.engines.prefill import CACHE_BLOCK_TOKENS

Key = tuple[str, int]  # ("session", id) or ("prompt", group)


class PrefixCache:
    """Prefixes of one worker; all counts are tokens in whole blocks."""

    def __init__(self, block_tokens: int = CACHE_BLOCK_TOKENS, drops_block: bool = False) -> None:
        """With `drops_block` the last block of a hit is computed again, for drafts from hidden states."""
        self._block_tokens = block_tokens
        self._drops_block = drops_block
        self.clear()

    def clear(self) -> None:
        """Lose everything, the prompts of running requests as well: they are queued again."""
        self._free: dict[Key, int] = {}  # what nobody uses, freed longest ago first
        self._prompts: dict[int, int] = {}  # cached prompt of each group, used or free
        self._users: dict[int, int] = {}  # requests of each group that run
        self._prompt_of: dict[int, int] = {}  # of those: the blocks of the prompt that all of a group share
        self.free_tokens = 0
        self.shared_tokens = 0  # that running requests would hold once more if they did not share prompts

    def whole_blocks(self, tokens: int) -> int:
        """Return the tokens of the whole blocks in so many, from 0."""
        return max(tokens, 0) // self._block_tokens * self._block_tokens

    def take(self, request: int, group: int, prompt: int, context: int, valid: int) -> int:
        """Return how many tokens of a context are found, and hold the prompt.

        `valid` is how much of the context is what the session's cache would hold, if it holds it.
        """
        prompt = self.whole_blocks(prompt)
        own = self._remove(("session", request))
        found = min(self._prompts.get(group, 0), prompt, self.whole_blocks(valid))
        if found == prompt:
            found = min(prompt + own, self.whole_blocks(valid))
        self._hold(group, prompt)
        found = min(found, self.whole_blocks(context - 1))
        return max(found - self._block_tokens, 0) if self._drops_block else found

    def release(self, request: int, group: int, prompt: int, computed: int, keep: bool) -> None:
        """Let go of a context of which so many tokens are `computed`; without `keep` nothing of it stays."""
        prompt, own = self.whole_blocks(prompt), self.whole_blocks(computed) - self.whole_blocks(prompt)
        if keep and own > 0:
            self._add(("session", request), own)
        self._users[group] -= 1
        if self._users[group]:
            self.shared_tokens -= self._prompt_of[group]
            return
        del self._users[group], self._prompt_of[group]
        if keep and computed >= prompt:
            self._add(("prompt", group), self._prompts[group])
        else:
            self._prompts.pop(group, None)

    def fit(self, room_tokens: float) -> None:
        """Let the oldest blocks go until what nobody uses is at most `room_tokens`."""
        while self.free_tokens > max(room_tokens, 0.0):
            key, tokens = next(iter(self._free.items()))
            over = math.ceil(self.free_tokens - max(room_tokens, 0.0))
            gone = min(tokens, self.whole_blocks(over + self._block_tokens - 1))
            self.free_tokens -= gone
            if gone == tokens:
                del self._free[key]
            else:
                self._free[key] = tokens - gone
            if key[0] == "prompt":
                self._prompts[key[1]] = tokens - gone

    def holds(self, group: int) -> int:
        """Return the tokens of a group's prompt that running requests hold: a further one adds nothing."""
        return self._prompt_of.get(group, 0)

    def _hold(self, group: int, prompt: int) -> None:
        self._remove(("prompt", group))
        if group in self._users:
            self._users[group] += 1
            self.shared_tokens += self._prompt_of[group]
        else:
            self._users[group] = 1
            self._prompt_of[group] = prompt
        self._prompts[group] = self._prompt_of[group]

    def _add(self, key: Key, tokens: int) -> None:
        self._remove(key)
        if tokens:
            self._free[key] = tokens
            self.free_tokens += tokens

    def _remove(self, key: Key) -> int:
        tokens = self._free.pop(key, 0)
        self.free_tokens -= tokens
        return tokens
