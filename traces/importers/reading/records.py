"""JSON records of a file: a line each, or documents that span lines, in bounded memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from tlt.traces.importers.reading.head import JSON_ERRORS, whole_text
from tlt.traces.importers.reading.items import Options, Reader, Response, Skip, Source, UnusableError
from tlt.traces.importers.reading.lines import (
    DOCUMENT_BYTES,
    LINE_BYTES,
    Line,
    iter_lines,
)
from tlt.traces.importers.reading.texts import TextResponse, needs_tokeniser, tokenised

R = TypeVar("R", bound=msgspec.Struct)
Row = TypeVar("Row", Response, TextResponse)

NOT_JSON = "not a JSON object"
TOO_LONG = f"a line longer than {LINE_BYTES >> 20} MiB"
TOO_LONG_DOCUMENT = f"a line longer than {DOCUMENT_BYTES >> 20} MiB"


def exact_reader(kind: type[R], row: Callable[[R, int, Source], Response]) -> Reader:
    """Return the reader of a JSONL format whose records of fields `kind` state lengths.

    row: makes a response of (record, line, source), or raises UnusableError with the reason.
    """

    def read(source: Source, options: Options) -> Iterator[Response | Skip]:
        del options
        return _rows(kind, row, source)

    return read


def text_reader(name: str, kind: type[R], row: Callable[[R, int, Source], TextResponse]) -> Reader:
    """Return the reader of a JSONL format whose records of fields `kind` hold texts."""

    def read(source: Source, options: Options) -> Iterator[Response | Skip]:
        if options.tokenise is None:
            raise needs_tokeniser(name)
        return tokenised(_rows(kind, row, source), options.tokenise, name)

    return read


def _rows(kind: type[R], row: Callable[[R, int, Source], Row], source: Source) -> Iterator[Row | Skip]:
    decoder = msgspec.json.Decoder(kind)
    for line in iter_lines(source.path):
        record = decode(decoder, line, TOO_LONG)
        if isinstance(record, Skip):
            yield record
            continue
        try:
            yield row(record, line.number, source)
        except UnusableError as error:
            yield Skip(line.number, str(error), line.text[:400])


def decode(decoder: msgspec.json.Decoder[R], line: Line, too_long: str) -> R | Skip:
    """Return the record of a line, or why there is none."""
    if line.too_long:
        return Skip(line.number, too_long, line.text)
    try:
        return decoder.decode(line.text)
    except JSON_ERRORS:
        record = _tolerant(decoder.type, line.text)
        return record or Skip(line.number, NOT_JSON, line.text[:400])


def _tolerant(kind: type[R], text: bytes) -> R | None:
    """Decode a line with NaN or Infinity, which Python writes and JSON does not know."""
    if b"NaN" not in text and b"Infinity" not in text:
        return None
    try:
        return msgspec.convert(json.loads(text), kind)
    except JSON_ERRORS:
        return None


def documents(kind: type[R], source: Source) -> Iterator[tuple[int, R] | Skip]:
    """Yield (number of the document from 1, record) of a file of one JSON object or of several in a row.

    One object a line is read line by line; else the file is read whole, up to 64 MiB of it.
    """
    decoder = msgspec.json.Decoder(kind)
    number = 0
    first = next(iter_lines(source.path, DOCUMENT_BYTES), None)
    if first is not None and not first.too_long and isinstance(decode(decoder, first, ""), Skip):
        yield from _spanning(kind, source)
        return
    for line in iter_lines(source.path, DOCUMENT_BYTES):
        record = decode(decoder, line, TOO_LONG_DOCUMENT)
        if isinstance(record, Skip):
            yield record
        else:
            number += 1
            yield number, record


def _spanning(kind: type[R], source: Source) -> Iterator[tuple[int, R] | Skip]:
    text = whole_text(source.path).strip()
    at, number = 0, 0
    parse = json.JSONDecoder().raw_decode
    while at < len(text):
        try:
            value, end = parse(text, at)
            record = msgspec.convert(value, kind)
        except JSON_ERRORS:
            line = text.count("\n", 0, at) + 1
            yield Skip(line, NOT_JSON, text[at : at + 400].encode("utf-8", "backslashreplace"))
            at = text.find("\n{", at + 1) + 1
            if not at:
                return
            continue
        number += 1
        yield number, record
        at = end
        while at < len(text) and text[at].isspace():
            at += 1


def need(name: str, found: Any) -> Any:
    """Return `found`; raises UnusableError if it is None."""
    if found is None:
        raise UnusableError(f"{name} is missing or of another type")
    return found
