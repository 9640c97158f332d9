"""What the keys of a framework's metrics mean, as a table for its page."""

from __future__ import annotations

from tlt.traces.importers.meaning import FRAMEWORKS
from tlt.traces.importers.meaning.key import Framework, Key, Meaning
from tltsched.errors import look_up

MEANINGS: dict[Meaning, str] = {
    "step": "a step",
    "gen": "its rollout",
    "reward": "rewards",
    "logprob": "log-probabilities",
    "policy_update": "update",
    "weight_sync": "weight sync",
    "decoding_last": "generating, of the response that ended last",
    "decoding_longest": "generating, the longest of a response",
    "decoding_mean": "generating, mean of responses",
    "waiting_longest": "waiting for tools or scoring, the longest of a response",
    "waiting_shortest": "the same, the shortest",
    "within_gen": "of the rollout, and no generation",
    "generations": "generations a step",
    "turns": "turns",
    "side_by_side": "only where rollouts go on while the policy is trained: no rollout is read then",
    "kept": "known, no phase here: every policy keeps it",
    "aside": "known, not read",
}


def keys_table(name: str) -> str:
    """Return the table of a framework; raises InputError for one that is not known."""
    framework = look_up(FRAMEWORKS, "framework of a keys block", name)
    rows = [
        f"| {words} | {'; '.join(_key(key) for key in framework.of(meaning))} |"
        for meaning, words in MEANINGS.items()
        if framework.of(meaning)
    ]
    return "\n".join(["| what it is | keys |", "|:--|:--|", *rows, *_notes(framework)])


def _key(key: Key) -> str:
    names = ", ".join(f"`{name}`" for name in key.names)
    return f"{names} ({key.note})" if key.note else names


def _notes(framework: Framework) -> list[str]:
    notes = [framework.note] if framework.note else []
    if framework.always_side_by_side:
        notes.append(f"{framework.always_side_by_side}: no rollout is read.")
    if framework.waits is not None:
        rollout, wait = framework.waits
        notes.append(
            f"A run whose `{wait}` is clearly below `{rollout}` trains meanwhile: no rollout is read."
        )
    return ["", " ".join(notes)] if notes else []
