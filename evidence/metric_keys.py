"""What the keys of a framework's metrics mean, as a table for its page."""

from __future__ import annotations

from tlt.traces.importers.formats.metrics import of_trainers, trl_metrics, verl_metrics
from tlt.traces.importers.formats.metrics.drawn import Names
from tlt.traces.importers.meaning import FRAMEWORKS
from tlt.traces.importers.meaning.key import Framework, Key, Meaning
from tltsched.errors import look_up

LENGTHS: dict[str, Names] = {
    "verl": verl_metrics.NAMES,
    "TRL": trl_metrics.NAMES,
    "slime": of_trainers.SLIME,
    "SkyRL": of_trainers.SKYRL,
    "NeMo-RL": of_trainers.NEMO_RL,
    "ROLL": of_trainers.ROLL,
}
DRAFTS = {
    "verl": ("rollout/spec_accept_length", "rollout/spec_accept_rate"),
    "slime": ("rollout/spec_accept_length", "rollout/spec_accept_rate"),
    "SkyRL": (
        "vllm/train/draft_num_draft_tokens", "vllm/train/draft_num_accepted_tokens",
        "vllm/train/draft_mean_acceptance_length", "vllm/train/draft_acceptance_rate_pos_1",
    ),
    "NeMo-RL": (
        "vllm/spec_num_drafts", "vllm/spec_num_draft_tokens", "vllm/spec_num_accepted_tokens",
        "vllm/spec_acceptance_length", "vllm/spec_acceptance_rate-pos-1",
    ),
}  # fmt: skip
MEANINGS: dict[Meaning, str] = {
    "step": "a step",
    "gen": "its rollout",
    "reward": "rewards",
    "logprob": "log-probabilities",
    "policy_update": "update",
    "weight_sync": "weight sync",
    "decoding_last": "generating, of the response that ended last",
    "decoding_longest": "generating, the longest of a response",
    "decoding_shortest": "generating, the shortest of a response",
    "waiting_longest": "waiting for tools or scoring, the longest of a response",
    "waiting_shortest": "the same, the shortest",
    "within_gen": "of the rollout, and no generation",
    "generations": "generations a step",
    "dropped": "generated and not among the responses: told, since the rollout holds more than they",
    "turns": "turns",
    "rounds": "times that the model is asked for a response",
    "tokens": "tokens of a step, with prompts",
    "step_rate": "the same, a second of the step and GPU",
    "rollout_rate": "response tokens, a second of the rollout and GPU that rolls out",
    "side_by_side": "only where rollouts go on while the policy is trained: no rollout is read then",
    "kept": "known, no phase here: every policy keeps it",
    "aside": "known, not read",
}


def keys_table(name: str) -> str:
    """Return the table of a framework; raises InputError for one that is not known."""
    framework = look_up(FRAMEWORKS, "framework of a keys block", name)
    rows = [*_lengths(name), *_drafts(name)]
    rows += [
        f"| {words} | {'; '.join(_key(key) for key in framework.of(meaning))} |"
        for meaning, words in MEANINGS.items()
        if framework.of(meaning)
    ]
    return "\n".join(["| what it is | keys |", "|:--|:--|", *rows, *_notes(framework)])


def _lengths(name: str) -> list[str]:
    """Return the rows of keys that lengths are drawn from."""
    names = LENGTHS.get(name)
    if names is None:
        return []
    before = next((prefix for prefix in names.before if prefix), "")
    rows = {
        "lengths: mean, longest, shortest": (names.mean, names.longest, names.shortest),
        "share of responses that were cut": (names.truncated,),
        "median": (names.median,),
        "mean of prompts": (names.prompt,),
    }
    note = f" (or with `{before}` before it)" if before else ""
    return [
        f"| {words} | {'; '.join(f'`{key}`' for key in keys if key)}{note} |"
        for words, keys in rows.items()
        if any(keys)
    ]


def _drafts(name: str) -> list[str]:
    """Return the row of keys that acceptance is taken from."""
    keys = DRAFTS.get(name, ())
    return [f"| acceptance | {'; '.join(f'`{key}`' for key in keys)} |"] if keys else []


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
