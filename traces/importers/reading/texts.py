"""Token counts of texts, by a tokenizer.json that the user gives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tlt.traces.importers.reading.items import Response, Skip, Tokenise
from tlt.traces.importers.reading.split_turns import turns_of
from tlt.traces.importers.reading.values import digest
from tltsched.errors import InputError

# What tools said, with the names of the roles around it, as chat templates leave it without special tokens.
TOOLS = re.compile(
    r"(?:\b(?:user|tool)\n)?(?:<tool_response>.*?(?:</tool_response>\s*|\Z))+(?:assistant\n)?", re.DOTALL
)
# What others said between two responses where special tokens are kept: ChatML, and Llama 3. The token that
# ends a response is its own.
TEMPLATES = re.compile(
    r"(?<=<\|im_end\|>)\s*<\|im_start\|>(?!assistant).*?(?:<\|im_start\|>assistant\n?|\Z)"
    r"|(?<=<\|eot_id\|>)\s*<\|start_header_id\|>(?!assistant).*?"
    r"(?:<\|start_header_id\|>assistant<\|end_header_id\|>\s*|\Z)",
    re.DOTALL,
)
BATCH_TEXTS, BATCH_CHARACTERS = 128, 4_000_000
LOST_BY_TOKENISING = (
    "Lengths are re-tokenised from text: special tokens were stripped, so the token that ends a response is "
    "not counted, and other texts of the same tokens may merge differently.",
    "What tools said within a response (<tool_response>) counts as prompt.",
)
WAITS_NOT_WRITTEN = "Turns are told apart by what stands between them; how long tools took is not written."
NOT_KNOWN_CUT = (
    "The file does not say which responses were cut: without --cap none is marked as cut; with it, those "
    "that reach it are."
)


class TextResponse(msgspec.Struct):
    """A response whose lengths are still texts. An empty `prompt` is not known.

    turns: (what others said, what the model wrote) in order, for a completion of several messages; empty: the
    completion is looked into.
    """

    response: Response
    prompt: str
    completion: str
    turns: list[tuple[str, str]] = []


def tokeniser(path: Path) -> Tokenise:
    """Return what counts the tokens of texts; raises InputError if the library or the file is of no use."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise InputError(
            "the library tokenizers",
            "not installed",
            "version 0.20 or later",
            'pip install "tlt-sim[importers]"',
        ) from None
    if not path.is_file():
        raise InputError(
            "--tokenizer", str(path), "a tokenizer.json", "give the file of the model that was trained"
        )
    try:
        found = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise InputError("--tokenizer", str(error)[:200], "a tokenizer.json", "check the file") from None
    found.no_truncation()
    found.no_padding()

    def count(texts: Sequence[str]) -> list[int]:
        clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        return [len(one.ids) for one in found.encode_batch(clean, add_special_tokens=False)]

    return count


def needs_tokeniser(name: str) -> InputError:
    """Return the error of a format that holds texts when no tokenizer was given."""
    return InputError(
        "--tokenizer",
        "none",
        "the tokenizer.json of the model that wrote the responses",
        f"{name} holds texts and no lengths: add --tokenizer FILE",
    )


def tokenised(
    rows: Iterator[TextResponse | Skip], tokenise: Tokenise | None, name: str
) -> Iterator[Response | Skip]:
    """Yield `rows` with their lengths filled in, in order. Memory: one batch of texts."""
    if tokenise is None:
        raise needs_tokeniser(name)
    held: list[TextResponse | Skip] = []
    characters = 0
    for row in rows:
        held.append(row)
        if isinstance(row, TextResponse):
            characters += len(row.prompt) + len(row.completion)
        if len(held) >= BATCH_TEXTS or characters >= BATCH_CHARACTERS:
            yield from _counted(held, tokenise)
            held, characters = [], 0
    yield from _counted(held, tokenise)


def _counted(held: list[TextResponse | Skip], tokenise: Tokenise) -> Iterator[Response | Skip]:
    rows = [row for row in held if isinstance(row, TextResponse)]
    turns = [row.turns or turns_in(row.completion) for row in rows]
    texts = list(dict.fromkeys(row.prompt for row in rows))
    prompts = len(texts)
    texts += [text for one in turns for pair in one for text in pair]
    counts = tokenise(texts)
    prompt_tokens = dict(zip(texts[:prompts], counts, strict=False))
    rest = iter(counts[prompts:])
    for row, pairs in zip(rows, turns, strict=True):
        tokens = [(next(rest), next(rest)) for _ in pairs]
        _fill(row.response, prompt_tokens[row.prompt], tokens)
        row.response.text_hash = digest("".join(own for _, own in pairs))
    for held_row in held:
        yield held_row.response if isinstance(held_row, TextResponse) else held_row


def turns_in(completion: str) -> list[tuple[str, str]]:
    """Return (what others said, what the model wrote) in order; before the first nothing was said."""
    said = TOOLS if TEMPLATES.search(completion) is None else TEMPLATES
    pairs, at, before = [], 0, ""
    for found in said.finditer(completion):
        pairs.append((before, completion[at : found.start()]))
        before, at = found.group(), found.end()
    return [*pairs, (before, completion[at:])]


def _fill(response: Response, prompt_tokens: int, tokens: list[tuple[int, int]]) -> None:
    """Set the lengths of a response from those of what others said and of what the model wrote."""
    said, own = (sum(column) for column in zip(*tokens, strict=True))
    response.prompt_tokens, response.response_tokens = prompt_tokens + said, own
    turns = turns_of([(prompt_tokens + tokens[0][0], tokens[0][1]), *tokens[1:]], response.why_ended())
    response.several_turns = len(tokens) > 1
    response.turns = turns if len(turns) > 1 else ()
