"""What is asked of a table of step times, and what it answers: plain structs that travel as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from tltsched.errors import InputError

LEAST_CONTEXT_TOKENS = 64
PREFILL_BATCHES = (1, 4, 16)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One engine step: `batch` requests of `context_tokens` each.

    decode: `k` drafts of each are made and verified (0: no speculation configured). prefill: all are prompts.
    """

    kind: Literal["decode", "prefill"]
    k: int = 0
    batch: int
    context_tokens: int


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """Whose engine steps: a model folder or a name that the table knows, on a system by the table's name."""

    model: str
    system: str
    engine: str  # by the table's name: vllm, sglang, trtllm
    tp: int = 1
    experts_parallel: int | None = None  # None: the model has no experts
    draft_config: dict[str, Any] | None = None  # config.json of an EAGLE-3 head


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of the engine step; or why there is none."""

    seconds: float | None = None
    refused: str = ""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Who answered: name and version of the package, and of the engine that its tables are of."""

    name: str
    version: str
    engine_version: str


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was answered, in the order of the questions."""

    table: Table
    subject: Subject
    questions: tuple[Question, ...]
    answers: tuple[Answer, ...]

    def answered(self, kind: str, *, drafting: bool = False) -> list[tuple[Question, float]]:
        """Return the questions of a kind that have seconds, with (or without) drafts."""
        return [
            (question, answer.seconds)
            for question, answer in zip(self.questions, self.answers, strict=True)
            if answer.seconds is not None and question.kind == kind and bool(question.k) == drafting
        ]

    def refusal(self, *, drafting: bool) -> str:
        """Return the first reason why an engine step with drafts (or without) has no seconds; "" : none."""
        return next(
            (answer.refused for question, answer in zip(self.questions, self.answers, strict=True)
             if answer.refused and bool(question.k) == drafting), "",
        )  # fmt: skip


def grid(max_running: int, contexts_tokens: Sequence[int], ks: Sequence[int]) -> tuple[Question, ...]:
    """Return the questions that a simulation of up to `max_running` requests needs.

    Batches are powers of two, all of them at the shortest context and every second at longer ones. Plain
    steps go on to as many requests as the largest batch verifies tokens: what a table does not know of
    drafts, it knows of the target. Raises InputError for a batch, a context or a K that is none.
    """
    drafts = sorted(set(ks))
    contexts = sorted({max(tokens, LEAST_CONTEXT_TOKENS) for tokens in contexts_tokens})
    if max_running < 1 or not contexts or any(k < 1 for k in drafts):
        got = f"max_running {max_running}, contexts {list(contexts_tokens)}, K {list(ks)}"
        raise InputError("the grid", got, "one request or more, a context, K of 1 or more", "correct it")
    batches = _powers(max_running)
    questions = []
    for row, context in enumerate(contexts):
        for batch in batches if row == 0 else batches[::-2][::-1]:
            questions += [
                Question(kind="decode", k=k, batch=batch, context_tokens=context) for k in (0, *drafts)
            ]
    most = max_running * (drafts[-1] + 1) if drafts else max_running
    questions += [
        Question(kind="decode", batch=batch, context_tokens=contexts[0])
        for batch in _powers(most) if batch > max_running
    ]  # fmt: skip
    questions += [Question(kind="prefill", batch=1, context_tokens=context) for context in contexts]
    questions += [
        Question(kind="prefill", batch=batch, context_tokens=contexts[0]) for batch in PREFILL_BATCHES[1:]
    ]
    return tuple(questions)


def _powers(most: int) -> list[int]:
    """Return 1, 2, 4, ... and `most` itself."""
    powers = [1]
    while powers[-1] * 2 <= most:
        powers.append(powers[-1] * 2)
    return powers if powers[-1] == most else [*powers, most]
