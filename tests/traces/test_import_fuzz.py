"""Broken and hostile files: an import, counted skips or a clear error, never anything else."""

from __future__ import annotations

import gzip
import importlib.util
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tlt.traces.importers import IMPORTERS
from tlt.traces.importers.acceptance.reading import read_acceptance
from tlt.traces.importers.importing import import_trace
from tlt.traces.importers.peek import peek
from tlt.traces.importers.phases import read_phases
from tlt.traces.importers.reading.items import Options
from tltsched.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "traces" / "importers" / "samples"
_spec = importlib.util.spec_from_file_location("import_mutations", ROOT / "evidence" / "import_mutations.py")
assert _spec is not None
assert _spec.loader is not None
mutations = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(mutations)

FILES_A_BLOCK = 10


def words(texts: object) -> list[int]:
    assert isinstance(texts, list)
    return [len(text.split()) for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_mutated_samples_never_end_in_a_traceback(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where code out of a pickle would leave its file
    rng = np.random.default_rng([41, block])
    samples = [path for path in sorted(SAMPLES.rglob("*")) if path.is_file() and path.suffix != ".md"]
    names, refusals, imports = list(IMPORTERS), [], 0
    for number in range(FILES_A_BLOCK):
        folder = tmp_path / str(number)
        folder.mkdir()
        label, path = mutations.make_case(samples, folder, rng)
        format_name = names[rng.integers(len(names))] if rng.integers(3) == 0 else None
        try:
            trace, report = import_trace(path, Options(tokenise=words, responses=8), format_name)
            assert report.rows == len(trace.rows) > 0, label
            imports += 1
        except InputError as error:
            refusals.append(str(error))
        for read in (read_phases, read_acceptance, peek):
            with suppress(InputError):
                read(path)
    assert not (tmp_path / "EXECUTED").exists()
    assert all(text.isprintable() and len(text) < 6000 for text in refusals)
    assert imports + len(refusals) == FILES_A_BLOCK


def test_a_gzip_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(gzip.compress(b"\0" * (48 << 20)))
    with pytest.raises(InputError, match="grows out of proportion"):
        import_trace(path, Options())


def test_a_folder_with_loops_pipes_and_links_is_read_for_its_files(tmp_path: Path) -> None:
    top = tmp_path / "run"
    top.mkdir()
    (top / "17.jsonl").write_bytes((SAMPLES / "areal" / "rollout" / "3" / "17.jsonl").read_bytes())
    (top / "18.jsonl.gz").write_bytes(gzip.compress(b'{"seqlen": 9}\n')[:-9])
    (top / "again").symlink_to(top)
    (top / "zero.jsonl").symlink_to("/dev/zero")
    os.mkfifo(top / "pipe.jsonl")
    trace, report = import_trace(top, Options())
    assert len(trace.rows) == 2
    left = {one.reason: one.count for one in report.files_left_out}
    assert left == {
        "a symbolic link, not followed": 2,
        "a pipe, device or socket": 1,
        "a file that cannot be read to its end": 1,
    }


@pytest.mark.parametrize("kind", ["loop", "fifo", "device", "missing", "empty folder", "empty file"])
def test_what_is_no_file_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "case"
    if kind == "loop":
        path.symlink_to(path)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "empty folder":
        path.mkdir()
    elif kind == "empty file":
        path.touch()
    with pytest.raises(InputError):
        import_trace(path, Options())
