"""slime: {rollout_id}.pt, a torch archive of samples with lengths, status and policy versions.

The archive is a zip whose data.pkl is a pickle; it is read without torch and without carrying it out.
"""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec

from tlt.traces.importers.base import Importer
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Options, Response, Skip, Source, UnusableError
from tlt.traces.importers.reading.lines import BrokenFileError, broken
from tlt.traces.importers.reading.plain_pickle import MAX_BYTES, Items, NotPlainError, load_plain
from tlt.traces.importers.reading.records import need
from tlt.traces.importers.reading.split_turns import turns_of
from tlt.traces.importers.reading.values import digest, key_of, number, whole
from tlt.traces.sessions.turns import Turn

MAX_RATIO, RATIO_FROM_BYTES = 20, 4 << 20  # torch does not compress, so a high ratio is no archive of torch
ZIP_ERRORS = (
    zipfile.BadZipFile, OSError, EOFError, zlib.error, RuntimeError, ValueError, KeyError,
    NotImplementedError, struct.error, IndexError, OverflowError,
)  # fmt: skip
NOT_WHOLE = {"pending", "aborted", "failed"}
ENDS = {"completed": "stop", "truncated": "length"}


def _read(source: Source, options: Options) -> Iterator[Response | Skip]:
    del options
    try:
        with zipfile.ZipFile(source.path) as archive:
            member = _member(archive, source)
            with archive.open(member) as file:
                value = load_plain(file)
    except BrokenFileError:
        raise
    except NotPlainError as error:
        raise BrokenFileError(
            f"contents of {source.name}",
            str(error),
            "a file of torch.save with plain samples",
            "save it again",
        ) from None
    except ZIP_ERRORS as error:
        raise broken(source.path, error) from None
    if not isinstance(value, dict) or not isinstance(value.get("samples"), Items):
        raise BrokenFileError(
            f"contents of {source.name}",
            "no list of samples",
            '{"rollout_id", "samples": [...]}',
            "check the file",
        )
    step = whole(value.get("rollout_id"))
    yield from _samples(value["samples"], source.step if step is None else step)


def _member(archive: zipfile.ZipFile, source: Source) -> zipfile.ZipInfo:
    found = [info for info in archive.infolist() if info.filename.endswith("data.pkl")]
    if len(found) != 1:
        raise BrokenFileError(
            f"members data.pkl of {source.name}", len(found), "1", "give a file of torch.save"
        )
    info = found[0]
    grown = info.file_size > max(RATIO_FROM_BYTES, MAX_RATIO * max(info.compress_size, 1))
    if grown or info.file_size > MAX_BYTES:
        allowed = f"{MAX_BYTES >> 30} GiB and {MAX_RATIO} times its compressed size"
        raise BrokenFileError(
            f"size of data.pkl in {source.name}", info.file_size, allowed, "save fewer samples a file"
        )
    return info


def _samples(samples: Items, step: int | None) -> Iterator[Response | Skip]:
    for index, sample in enumerate(samples.kept):
        try:
            yield _sample(sample, index, step)
        except UnusableError as error:
            yield Skip(index + 1, str(error), f"sample {index + 1}".encode())
    if samples.count > len(samples.kept):
        yield Skip(0, "a sample that is a number", f"{samples.count - len(samples.kept)} of them".encode())


def _sample(sample: Any, index: int, step: int | None) -> Response:
    if not isinstance(sample, dict):
        raise UnusableError("a sample that is no dict")
    status = sample.get("status")
    if isinstance(status, str) and status in NOT_WHOLE:
        raise UnusableError(f"status {status}: the response is not whole")
    tokens = need("response_length", whole(sample.get("response_length")))
    everything, own = sample.get("tokens"), _own_tokens(sample.get("loss_mask"), tokens)
    before = everything.count - own if isinstance(everything, Items) else 0
    group, text = key_of(sample.get("group_index")), sample.get("response")
    return Response(
        line=index + 1,
        group=f"sample {index}" if group is None else group,
        response_tokens=own,
        prompt_tokens=max(before, 0),
        truncated=status == "truncated",
        step=step,
        lag=_lag(sample.get("weight_versions")),
        several_turns=own < tokens,
        end=ENDS.get(status, "not_known") if isinstance(status, str) else "not_known",
        turns=_turns(sample, max(before, 0) - (tokens - own)) if own < tokens else (),
        reward=number(sample.get("reward")),
        text_hash=digest(text) if isinstance(text, str) else 0,
    )


def _turns(sample: dict[str, Any], prompt_tokens: int) -> tuple[Turn, ...]:
    """Return the turns that the mask of the loss tells apart: runs of ones were decoded, zeros put in.

    The seconds outside of generation are those of all waits: of one alone they are that wait. 0 is the
    default and not measured.
    """
    mask = sample.get("loss_mask")
    if not isinstance(mask, Items) or not mask.runs:
        return ()
    runs = mask.runs if mask.begins == 0 else [0, *mask.runs]
    runs = [*runs, 0] if len(runs) % 2 else runs
    pairs = list(zip(runs[::2], runs[1::2], strict=True))
    pairs[0] = (max(prompt_tokens, 0) + pairs[0][0], pairs[0][1])
    status = sample.get("status")
    turns = turns_of(pairs, ENDS.get(status, "not_known") if isinstance(status, str) else "not_known")
    outside_s = number(sample.get("non_generation_time"))
    if len(turns) == 2 and outside_s:
        turns = (msgspec.structs.replace(turns[0], wait_s=outside_s), turns[1])
    return turns if len(turns) > 1 else ()


def _own_tokens(mask: Any, tokens: int) -> int:
    """Return the tokens of a response that the model wrote: those of tools have 0 in the mask of the loss.

    A mask of zeros alone leaves the sample out of the loss and says nothing of who wrote it.
    """
    if not isinstance(mask, Items) or mask.count != tokens or mask.kept or mask.smallest is None:
        return tokens
    return mask.total if mask.smallest == 0 and mask.largest == 1 else tokens


def _lag(versions: Any) -> int | None:
    """Return last minus first of the versions that a response was written with."""
    if not isinstance(versions, Items) or not versions.count:
        return None
    numbers = [
        int(v) for v in versions.kept if isinstance(v, str) and v.isascii() and v.isdigit() and len(v) < 19
    ]
    numbers += [v for v in (versions.smallest, versions.largest) if v is not None]
    return max(numbers) - min(numbers) if numbers else None


def _detect(head: Head) -> str:
    if head.start.startswith(b"\x80"):
        return "a bare pickle, which is refused: torch.save writes a zip archive since 1.6"
    if not head.start.startswith(b"PK\x03\x04"):
        return "no zip archive, as torch.save writes"
    try:
        with zipfile.ZipFile(head.path) as archive:
            names = archive.namelist()
    except ZIP_ERRORS as error:
        return f"a broken zip archive: {str(error)[:80]}"
    return "" if any(name.endswith("data.pkl") for name in names) else "no data.pkl in the archive"


IMPORTER = Importer(
    name="slime",
    framework="slime",
    file="{rollout_id}.pt",
    written_by="--save-debug-rollout-data '/p/{rollout_id}.pt' or --dump-details DIR",
    kind="rollout",
    lengths="exact",
    lost=(
        "Samples that are pending, aborted or failed are left out: their lengths are not final.",
        "Tokens that are masked in the loss, as those of tools, count as prompt.",
    ),
    detect=_detect,
    read=_read,
    waits=(
        "Turns are runs of the loss mask. Of waits their sum is written (non_generation_time): a "
        "sample with one wait has it, single waits of others are not known."
    ),
    file_name=re.compile(r"(?:^|/)(?!eval_)[^/]*?(?P<step>\d+)\.pt$"),
)
