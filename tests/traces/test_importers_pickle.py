"""Pickles are read for plain values and never carried out."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from tlt.traces.importers.importing import import_trace
from tlt.traces.importers.reading import plain_pickle
from tlt.traces.importers.reading.items import Options
from tlt.traces.importers.reading.plain_pickle import OPAQUE, Items, NotPlainError, load_plain
from tltsched.errors import InputError


def load(data: bytes) -> Any:
    return load_plain(io.BytesIO(data))


def plain(value: Any) -> Any:
    """Return Items as a tuple of count, kept values and range."""
    if isinstance(value, Items):
        return (value.count, [plain(v) for v in value.kept], value.smallest, value.largest)
    return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_are_read_in_every_protocol(protocol: int) -> None:
    value = {
        "a": [1, 2.5, "x", None],
        "b": ("y",),
        3: {"c": True},
        "d": [],
        "e": list(range(3000)),
        "f": 10**30,
    }
    assert plain(load(pickle.dumps(value, protocol))) == {
        "a": (4, ["x", None], 1, 1),
        "b": (1, ["y"], None, None),
        3: {"c": True},
        "d": (0, [], None, None),
        "e": (3000, [], 0, 2999),
        "f": 10**30,
    }


class Attack:
    """Leaves a file behind if its pickle is carried out."""

    def __reduce__(self) -> Any:
        return (open, ("EXECUTED", "w"))


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_objects_are_opaque_and_nothing_is_called(
    protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    value = {"evil": Attack(), "odd": OrderedDict(a=1), "bytes": b"xx", "set": {1}, "after": 5}
    found = load(pickle.dumps(value, protocol))
    assert found["evil"] is found["odd"] is OPAQUE
    assert found["after"] == 5
    assert not (tmp_path / "EXECUTED").exists()


def test_long_texts_are_not_kept() -> None:
    assert load(pickle.dumps("x" * 1000)) is OPAQUE


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x80\x02", b"N", b"N0.", b"a.", b"e.", b"NN.", b"(NNNs.", b"}(Nu.", b"h\x07.", b"I12x\n.",
        b"\xfe.",
        b"\x8d" + (1 << 60).to_bytes(8, "little"), b"\x8b\xff\xff\xff\x7f",
        b"X\x04\x00\x00\x00\xff\xff\xff\xff.",
        b"I" + b"9" * 5000 + b"\n.",
    ],
)  # fmt: skip
def test_broken_pickles_are_refused(data: bytes) -> None:
    with pytest.raises(NotPlainError):
        load(data)


def test_bounds_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_pickle, "MAX_STORED", 1000)
    for data in (
        b"N" * 2000 + b".",
        b"]" + b"q\x00" * 2000 + b".",
        b"](" + b"N" * 900 + b"e(" + b"N" * 900 + b"e.",
    ):
        with pytest.raises(NotPlainError, match="1,000"):
            load(data)
    monkeypatch.setattr(plain_pickle, "MAX_BYTES", 100)
    with pytest.raises(NotPlainError, match="GiB of instructions"):
        load(b"N0" * 100 + b".")


def archive(path: Path, pickled: bytes, method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("4/data.pkl", pickled)
    return path


def sample(**change: Any) -> dict[str, Any]:
    return {"group_index": 0, "tokens": [1] * 9, "response_length": 5, "status": "completed"} | change


def test_a_sample_with_an_opaque_length_is_a_counted_skip(tmp_path: Path) -> None:
    samples = [
        sample(),
        sample(response_length=Attack()),
        sample(status=Attack()),
        "x",
        7,
        sample(tokens=None),
    ]
    path = archive(tmp_path / "3.pt", pickle.dumps({"rollout_id": None, "samples": samples}, 2))
    trace, report = import_trace(path, Options())
    assert trace.rows["response_tokens"].tolist() == [5, 5, 5]
    assert trace.rows["prompt_tokens"].tolist() == [4, 4, 0]
    assert trace.rows["step"].tolist() == [3, 3, 3]
    assert {left.reason for left in report.skipped} == {
        "response_length is missing or of another type", "a sample that is no dict",
        "a sample that is a number",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("pickled", "method", "told"),
    [
        (b"N" * (5 << 20), zipfile.ZIP_DEFLATED, "times its compressed size"),
        (b"cos\nsystem\n(S'touch EXECUTED'\ntR.", zipfile.ZIP_STORED, "no list of samples"),
        (b"N0", zipfile.ZIP_STORED, "plain samples"),
    ],
)
def test_hostile_archives_are_refused(pickled: bytes, method: int, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told):
        import_trace(archive(tmp_path / "4.pt", pickled, method), Options())


def test_a_bare_pickle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "4.pt"
    path.write_bytes(pickle.dumps({"samples": []}))
    with pytest.raises(InputError, match="a bare pickle, which is refused"):
        import_trace(path, Options())
