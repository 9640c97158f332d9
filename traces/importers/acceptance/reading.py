"""Acceptance out of a file: server logs, Prometheus text, results of benchmarks, metrics of trainers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tlt.traces.importers import IMPORTERS
from tlt.traces.importers.acceptance.benchmarks import Drafting
from tlt.traces.importers.acceptance.counted import Acceptance, Counted, law_of
from tlt.traces.importers.acceptance.engine_logs import ServerLog
from tlt.traces.importers.acceptance.prometheus import Scrapes
from tlt.traces.importers.acceptance.trainer_metrics import TrainerMetrics
from tlt.traces.importers.folder import regular_files
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Skip, Source
from tlt.traces.importers.reading.lines import iter_lines, shown
from tlt.traces.importers.reading.metric_tables import is_parquet
from tlt.traces.importers.reading.metrics import iter_metrics
from tlt.traces.importers.reading.records import documents
from tlt.traces.importers.report import Tally
from tltsched.errors import InputError

LINE_BYTES = 1 << 16
OF_BENCHMARKS = ("spec_decode_num_drafts", "accept_length")
READ = (
    "a vLLM or SGLang server log, Prometheus text of them, a result of their serving benchmarks, or metrics "
    "of slime, SkyRL, verl or NeMo-RL"
)
Found = tuple[str, str, list[Counted]]  # source, what weights are, counts


@dataclass(frozen=True)
class FoundDrafts:
    """What one source at a path counted."""

    source: str
    weighed: str
    counted: tuple[Counted, ...]

    @property
    def accepted(self) -> float:
        """Drafts of a verification that are accepted in the mean; the bonus token is not counted."""
        verifications = sum(one.verifications for one in self.counted)
        return (
            sum(one.accepted * one.verifications for one in self.counted) / verifications
            if verifications
            else 0.0
        )

    def law(self, depth: int | None = None) -> Acceptance:
        """Return the law; raises InputError as `law_of` does."""
        return law_of(self.counted, self.source, self.weighed, depth)


def read_acceptance(path: Path, depth: int | None = None) -> Acceptance:
    """Return the law of acceptance that a file or folder states.

    depth: drafts of a verification, for files that do not say it. Raises InputError if there is nothing,
    if two sources disagree, or if the depth is needed.
    """
    found = find_drafts(path, depth)
    if found is None:
        raise InputError(
            f"acceptance in {shown(path)}", "none", READ,
            "switch speculative decoding on in the run, or set acceptance.* by hand",
        )  # fmt: skip
    return found.law(depth)


def find_drafts(
    path: Path, depth: int | None = None, files: Sequence[Path] | None = None
) -> FoundDrafts | None:
    """Return what is counted in `files`, by default all at `path`; None if nothing is about drafts.

    Raises InputError if several sources count: they may count the same.
    """
    sources: dict[tuple[str, str], list[Counted]] = {}
    for file in regular_files(path, Tally()) if files is None else files:
        for source, weighed, counted in _of_file(file, depth):
            sources.setdefault((source, weighed), []).extend(counted)
    if not sources:
        return None
    if len(sources) > 1:
        raise InputError(
            f"acceptance in {shown(path)}", ", ".join(source for source, _ in sources), "one source",
            "they count the same drafts: give one file",
        )  # fmt: skip
    (((source, weighed), counted),) = sources.items()
    return FoundDrafts(f"{source} {shown(path)}", weighed, tuple(counted))


def _of_file(file: Path, depth: int | None) -> list[Found]:
    head = Head(file)
    if not head.is_text and not is_parquet(head):
        return []
    if any(name in head.fields for name in ("output_lens", *OF_BENCHMARKS)):
        return _of_benchmark(file)
    log, scrapes = ServerLog(depth), Scrapes()
    for line in iter_lines(file, LINE_BYTES) if head.is_text else ():
        log.take(line)
        scrapes.take(line)
    found = [*log.counted(), *scrapes.counted(shown(file))]
    if found:
        return found
    metrics = TrainerMetrics()
    for one in iter_metrics(file):
        if not isinstance(one, Skip):
            metrics.take(one)
    return metrics.counted(_framework(head))


def _of_benchmark(file: Path) -> list[Found]:
    vllm: list[Counted] = []
    sglang: list[Counted] = []
    for found in documents(Drafting, Source(file, shown(file))):
        if isinstance(found, Skip):
            continue
        _, result = found
        if (one := result.vllm()) is not None:
            vllm.append(one)
        elif (one := result.sglang()) is not None:
            sglang.append(one)
    of_vllm = [("vLLM benchmark", "", vllm)] if vllm else []
    return (
        [*of_vllm, ("SGLang benchmark", "runs are weighted by their requests", sglang)] if sglang else of_vllm
    )


def _framework(head: Head) -> str:
    """Return the framework whose metrics a file begins with; "" if none or several are known by them."""
    fitting = [
        one.framework for one in IMPORTERS.values() if one.kind == "generated" and not one.detect(head)
    ]
    return fitting[0] if len(fitting) == 1 else ""
