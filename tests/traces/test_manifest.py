"""Folders of results know their files: what was changed, cut or taken away is named."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tlt.traces.common.manifest import MANIFEST, is_whole, seal_also, sealed, verify, verify_all
from tlt.traces.common.writing import replacing, write_file
from tltsched.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with sealed(tmp_path / "run"):
        (tmp_path / "run" / "a.json").write_bytes(b'{"x": 1}')
        (tmp_path / "run" / "b.parquet").write_bytes(bytes(range(256)))
        (tmp_path / "run" / "answer.json").write_bytes(b"{}")  # a report makes it anew
    return tmp_path / "run"


def test_a_folder_as_it_was_written_is_whole(folder: Path, tmp_path: Path) -> None:
    verify_all(folder)
    assert is_whole(folder)
    (folder / "answer.json").write_bytes(b"[]")
    (folder / "more.json").write_bytes(b"[]")
    assert is_whole(folder), "what is not on the list is not of the run"
    assert not is_whole(tmp_path), "a folder without a manifest was not finished"
    verify_all(tmp_path)  # but can be read, as those of earlier versions


def test_every_bit_of_every_file_counts(folder: Path) -> None:
    rng = Random(0)  # noqa: S311
    for name in ("a.json", "b.parquet", MANIFEST):
        path = folder / name
        whole = path.read_bytes()
        places = range(len(whole) * 8) if name == "a.json" else rng.sample(range(len(whole) * 8), 300)
        for place in places:
            content = bytearray(whole)
            content[place // 8] ^= 1 << place % 8
            path.write_bytes(content)
            with pytest.raises(InputError, match=MANIFEST if name == MANIFEST else name):
                verify_all(folder)
            assert not is_whole(folder)
        path.write_bytes(whole)
    verify_all(folder)


def test_a_file_that_was_cut_or_has_grown_says_so(folder: Path) -> None:
    path = folder / "b.parquet"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=r"b\.parquet, which was cut to 100 bytes.*the 256 bytes"):
        verify(path)
    path.write_bytes(bytes(300))
    with pytest.raises(InputError, match="has grown to 300 bytes"):
        verify(path)
    path.unlink()
    verify(path)  # whoever needs it says that there is none
    with pytest.raises(InputError, match=r"b\.parquet, which is gone"):
        verify_all(folder)


def test_a_report_may_add_its_file(folder: Path) -> None:
    seal_also(folder, "answer.json")
    (folder / "answer.json").write_bytes(b"[]")
    with pytest.raises(InputError, match=r"answer\.json, which was changed"):
        verify(folder / "answer.json")
    (folder / "answer.json").unlink()
    seal_also(folder, "answer.json")
    assert is_whole(folder)
    seal_also(folder.parent, "answer.json")
    assert not (folder.parent / MANIFEST).is_file(), "a folder that was not sealed stays so"


def test_a_folder_is_made_with_those_above_it(tmp_path: Path) -> None:
    with sealed(tmp_path / "a" / "b"):
        pass
    assert is_whole(tmp_path / "a" / "b")


def test_an_error_leaves_no_manifest(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError), sealed(folder):
        raise ZeroDivisionError
    assert not (folder / MANIFEST).is_file()


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path, precious = tmp_path / "x.json", tmp_path / "precious.txt"
    precious.write_text("mine")
    path.symlink_to(precious)
    write_file(path, b"new")
    assert (precious.read_text(), path.read_text(), path.is_symlink()) == ("mine", "new", False)

    def half(part: Path) -> None:
        part.write_bytes(b"half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), replacing(path) as part:
        half(part)
    assert [each.name for each in sorted(tmp_path.iterdir())] == ["precious.txt", "x.json"]
    assert path.read_text() == "new"
    write_file(tmp_path / ("n" * 255), b"longest name")


def test_long_files_and_those_of_other_kinds(tmp_path: Path) -> None:
    with sealed(tmp_path / "run"):
        (tmp_path / "run" / "long.parquet").write_bytes(bytes(5000))
        (tmp_path / "run" / "notes.txt").write_text("mine")
        (tmp_path / "run" / "folder.json").mkdir()
    verify_all(tmp_path / "run")
    (tmp_path / "run" / "notes.txt").unlink()
    assert is_whole(tmp_path / "run")
    assert b"long.parquet" in (tmp_path / "run" / MANIFEST).read_bytes()
    assert b"notes.txt" not in (tmp_path / "run" / MANIFEST).read_bytes()
