"""What happens to 1,000 broken and hostile files? `python -m evidence.import_fuzz`

Each is a sample of an importer, changed by a seeded mutation, and imported in this process: under 2 GiB of
address space and 30 seconds of processor time a file (one that blocks is stopped after 120 s). The format is
found from the contents, or, for a third of the files, is a random one of all. Phase times and acceptance are
looked for in each, and it is peeked at. Counted are imports, imports with something left out, refusals with a
clear error, and all else, of which there must be none. Writes import_fuzz.json.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a pool of threads would reserve address space

import numpy as np

from evidence.import_mutations import make_case
from evidence.recording import OTHERS, device, write
from tlt.traces.importers import IMPORTERS
from tlt.traces.importers.acceptance.reading import read_acceptance
from tlt.traces.importers.formats import columns
from tlt.traces.importers.importing import import_trace
from tlt.traces.importers.peek import peek
from tlt.traces.importers.phases import read_phases
from tlt.traces.importers.reading.items import Options
from tlt.traces.importers.reading.texts import tokeniser
from tltsched.errors import InputError

FILES, SEED = 1_000, 6
COLUMNS = "response_tokens=output_toks,group=request_id,arrived_s=arrival_time:s,truncated=cut:length"
LIMIT_BYTES, LIMIT_S, BLOCKED_S = 2 << 30, 30, 120
SAMPLES = Path(__file__).resolve().parents[1] / "traces" / "importers" / "samples"


def outcome(path: Path, options: Options, format_name: str | None) -> str:
    """Import one file and say what came of it."""
    if format_name == columns.IMPORTER.name:
        options = replace(options, columns=(COLUMNS,))
    try:
        _, report = import_trace(path, options, format_name)
    except InputError as error:
        if not str(error).isprintable():
            raise RuntimeError("an error that could act on a terminal") from None
        return "refused"
    else:
        left_out = report.skips + sum(one.count for one in report.files_left_out)
        return "imported, with counted skips" if left_out else "imported"
    finally:
        for read in (read_phases, read_acceptance, peek):
            with suppress(InputError):
                read(path)


def peak_mb() -> float:
    """Return the peak resident memory of this process."""
    return int(Path("/proc/self/status").read_text(encoding="ascii").split("VmHWM:")[1].split()[0]) / 1024


def fuzz(watch: Watch) -> tuple[Counter[str], float, int]:
    """Return outcomes, the longest time of a file, and how many files ran code that they carried."""
    rng = np.random.default_rng(SEED)
    samples = [path for path in sorted(SAMPLES.rglob("*")) if path.is_file() and path.suffix != ".md"]
    options = Options(tokenise=tokeniser(SAMPLES / "tokenizer.json"), responses=8)
    counts: Counter[str] = Counter()
    longest, names = 0.0, list(IMPORTERS)
    top = Path(tempfile.mkdtemp())
    os.chdir(top)  # where code out of a pickle would leave its file
    for number in range(FILES):
        folder = top / str(number)
        folder.mkdir()
        label, path = make_case(samples, folder, rng)
        format_name = names[rng.integers(len(names))] if rng.integers(3) == 0 else None
        began = time.process_time()
        watch.begin()
        try:
            counts[outcome(path, options, format_name)] += 1
        except BaseException:  # whatever a user would see as a traceback
            counts["traceback"] += 1
            print(number, label, format_name, traceback.format_exc(limit=-4), flush=True)
        signal.alarm(0)
        took = time.process_time() - began
        if took > 2:
            print(f"{number} {label} {format_name}: {took:.1f} s", flush=True)
        longest = max(longest, took)
        shutil.rmtree(folder)
    executed = len(list(top.glob("EXECUTED")))
    os.chdir("/")
    shutil.rmtree(top)
    return counts, longest, executed


class Watch:
    """Stops a file that blocks or takes too long; one that a busy machine is slow with goes on."""

    def __init__(self) -> None:
        self._began_s = self._seen_s = 0.0  # of processor time

    def begin(self) -> None:
        """Watch the next file."""
        self._began_s = self._seen_s = time.process_time()
        signal.alarm(BLOCKED_S)

    def look(self, *_: object) -> None:
        """Raise SystemError unless processor time was used since the last look, and not too much in all."""
        now_s = time.process_time()
        if now_s - self._seen_s < 1 or now_s - self._began_s > LIMIT_S:
            raise SystemError(f"more than {BLOCKED_S} s, of them {now_s - self._began_s:.0f} s at work")
        self._seen_s = now_s
        signal.alarm(BLOCKED_S)


def main() -> None:
    """Fuzz and write the record."""
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    watch = Watch()
    signal.signal(signal.SIGALRM, watch.look)
    counts, longest, executed = fuzz(watch)
    value = {
        "files": float(FILES),
        "imported": float(counts["imported"]),
        "imported, with counted skips": float(counts["imported, with counted skips"]),
        "refused with a clear error": float(counts["refused"]),
        "tracebacks": float(counts["traceback"]),
        "pickles that ran code": float(executed),
        "longest processor time of a file": round(longest, 2),
        "peak memory": round(peak_mb()),
    }
    write(
        "import_fuzz",
        claim="1,000 mutated samples (cut, changed types, huge integers, mixed encodings, bombs, links, "
        "pipes, hostile pickles): each imported, imported with counted skips, or refused",
        value=value,
        unit={OTHERS: "", "longest processor time of a file": "s", "peak memory": "MB"},
        measured_on=device(),
        target="no traceback, below 30 s of processor time a file and 2 GiB of address space",
        met=not counts["traceback"] and not executed and longest < LIMIT_S,
        how=f"measured, one process, seed {SEED}; the format is forced at random for a third of the files",
        command="python -m evidence.import_fuzz",
    )


if __name__ == "__main__":
    main()
