"""A key of a framework's metrics and what it means.

Seconds called generation are not all decoding: a log says by other keys that tools were waited for, that a
step generated several times, or that they are a trainer's wait for rollouts that go on elsewhere.
"""

from __future__ import annotations

from typing import Literal

import msgspec

# What the simulator calls a phase, and what a step and its rollout took.
Phase = Literal["step", "gen", "reward", "logprob", "policy_update", "weight_sync"]
Meaning = Literal[
    Phase,
    "decoding_last",  # seconds that the response which ended last was generated for, within gen
    "decoding_longest",  # the most that any response was generated for
    "decoding_shortest",  # the least that any response was generated for
    "waiting_longest",  # the most that any response waited for tools or scoring, within gen
    "waiting_shortest",
    "within_gen",  # seconds of gen in which nothing is generated
    "generations",  # how many generations, one after the other, gen holds
    "dropped",  # counts of what was generated and is not among the responses of the step
    "turns",  # messages or turns of a response, in the mean
    "rounds",  # times that the model is asked for a response, in the mean
    "tokens",  # of all responses of a step, with their prompts
    "step_rate",  # of them, a second of the step and GPU
    "rollout_rate",  # response tokens, a second of the rollout and GPU that rolls out
    "side_by_side",  # logged only where rollouts go on while the policy is trained
    "kept",  # seconds of a step that are no phase here: every policy keeps them
    "aside",  # known and not read: a rate, a statistic of single responses, a part of another key
]
PHASE_NAMES: tuple[Phase, ...] = ("step", "gen", "reward", "logprob", "policy_update", "weight_sync")


class Key(msgspec.Struct, frozen=True):
    """One quantity. names: as logged, by versions of the framework; the first that is there counts.

    A name that ends with `*` stands for all that begin so. Seconds of several keys of one phase are summed.
    """

    names: tuple[str, ...]
    meaning: Meaning
    note: str = ""

    def value(self, values: dict[str, float]) -> float | None:
        """Return what a step states, if it does."""
        return next((values[name] for name in self.names if name in values), None)

    def fits(self, name: str) -> bool:
        """Return whether `name` is one of the names."""
        return any(
            name.startswith(known[:-1]) if known.endswith("*") else name == known for known in self.names
        )


class Framework(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of one framework.

    times: beginnings of names that are seconds. single_turn: what the key of turns says of one question and
    one answer. always_side_by_side: why the rollouts of this framework never are a phase; empty: they may be.
    waits: (rollout, wait): names of seconds; a trainer that waits less than a rollout takes trains meanwhile.
    """

    name: str
    keys: tuple[Key, ...]
    times: tuple[str, ...]
    single_turn: float = 1.0
    always_side_by_side: str = ""
    waits: tuple[str, str] | None = None
    note: str = ""

    def of(self, meaning: Meaning) -> list[Key]:
        """Return the keys with a meaning."""
        return [key for key in self.keys if key.meaning == meaning]

    def stated(self, meaning: Meaning, values: dict[str, float]) -> float | None:
        """Return the sum of what a step states under a meaning; None where it states nothing."""
        found = [value for key in self.of(meaning) if (value := key.value(values)) is not None]
        return sum(found) if found else None

    def names(self, meaning: Meaning, values: dict[str, float]) -> tuple[str, ...]:
        """Return the names that a step states a meaning under, one of each key."""
        return tuple(
            next(name for name in key.names if name in values)
            for key in self.of(meaning)
            if key.value(values) is not None
        )

    def claims(self, values: dict[str, float]) -> bool:
        """Return whether a step has seconds of a phase under a name of this framework."""
        return any(key.meaning in PHASE_NAMES and _logged(key, values) for key in self.keys)

    def key_of(self, name: str) -> Key | None:
        """Return the key that a name belongs to, if it is known."""
        return next((key for key in self.keys if key.fits(name)), None)

    def kept(self, values: dict[str, float]) -> list[str]:
        """Return the names of seconds that a step states and that are no phase here."""
        return [
            name for name in values
            if name.startswith(self.times)
            and ((key := self.key_of(name)) is None or key.meaning == "kept")
        ]  # fmt: skip

    def side_by_side(self, values: dict[str, float]) -> str:
        """Return what says that rollouts go on while the policy is trained; empty: nothing."""
        if self.always_side_by_side:
            return self.always_side_by_side
        for key in self.of("side_by_side"):
            name = _logged(key, values)
            if name:
                return f"{name} is logged only then"
        return ""

    def waits_less(self, values: dict[str, float]) -> bool:
        """Return whether the trainer of a step waits clearly less than the rollout took."""
        if self.waits is None:
            return False
        rollout, wait = self.waits
        return rollout in values and wait in values and values[wait] < WAITED * values[rollout]

    def dropped(self, values: dict[str, float]) -> str:
        """Return the first name that says of a step that responses were dropped; empty: none does."""
        keys = self.of("dropped")
        return next((name for name, value in values.items() if value > 0 and _fits(keys, name)), "")


WAITED = 0.9  # of a rollout: a trainer that waits less has begun before it ended


def _fits(keys: list[Key], name: str) -> bool:
    return any(key.fits(name) for key in keys)


def _logged(key: Key, values: dict[str, float]) -> str:
    return next((name for name in values if key.fits(name)), "")


def key(names: str, meaning: Meaning, note: str = "") -> Key:
    """Return a key; names are separated by spaces, the one of today's source first."""
    return Key(tuple(names.split()), meaning, note)
