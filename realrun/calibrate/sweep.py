"""Measures what the simulator needs of a live engine: steps by batch, context and K, prefill, switches.

Both engines, the plain one (no speculation configured) and the speculating one, are built in this process, as
a replay has them; with stock graphs, or where memory has no room for both, each is measured in a process of
its own, one after the other. The repeats of a point are spread over rounds through the whole grid. The order
of engines and cells inside a round is shuffled, so that drift of the machine spreads over all points alike.
Every repeat goes to a partial file at once; the same call goes on from there after an interrupt.
"""

from __future__ import annotations

import datetime
import random
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from tlt.realrun.calibrate.apart import KindTask, Progress, run_apart, serve
from tlt.realrun.calibrate.background_load import neighbours
from tlt.realrun.calibrate.measurement_plan import MIXED_REPEATS, Cell, Plan, make_plan
from tlt.realrun.calibrate.points import to_mixed_points, to_points, to_prefill_points, to_switch_points
from tlt.realrun.calibrate.progress_file import CHUNK_TOKENS, Facts, PartialFile
from tlt.realrun.calibrate.time_steps import BatchNotWholeError, Bench, EngineKind
from tlt.realrun.config import RealConfig
from tlt.realrun.engine.factory import MAKE_ENGINE, engine_factory
from tlt.realrun.engine.protocol import Engine
from tlt.realrun.engine.vllm_settings import graph_batches
from tlt.realrun.workers.machine import device_name, engine_version
from tlt.traces.results.calibration_points import SYNTHETIC, MeasuredPoints
from tlt.traces.runs.runfolder import write_json

# Prompt tokens whose prefill takes about as long as an engine step: for the progress bar.
ENGINE_STEP_WORK_TOKENS = 300


def calibrate(
    config: RealConfig, out: Path, progress: Progress, make_engine: str = MAKE_ENGINE
) -> MeasuredPoints:
    """Measure the engine of `config` and write the points to the JSON file `out`.

    `out` with .partial.jsonl appended keeps the repeats until then. `make_engine` is `module:function`.
    Raises InputError for a configuration that leaves nothing to measure or a partial file of another one, and
    WorkerError if a neighbour does not run or an engine's process ends.
    """
    plan, partial, logs = make_plan(config), _partial(config, out), out.parent / "logs"
    out.parent.mkdir(parents=True, exist_ok=True)
    with neighbours(config, make_engine, logs, partial.path) as others:

        def watched(work: float, of: float, what: str) -> None:
            others.check()
            progress(work, of, what)

        sweep = Sweep(config, plan, partial, watched)
        if in_processes_apart(config):
            for kind in sweep.kinds:
                task = KindTask(config, make_engine, str(out), kind)
                run_apart(_measure_apart, task, logs, watched)
            sweep = Sweep(config, plan, _partial(config, out), watched)
        else:
            sweep.run(make_engine, sweep.kinds)
        others.check()
    measured = sweep.measured()
    fresh = out.with_name(f"{out.name}.new")
    write_json(fresh, measured)
    fresh.replace(out)  # a reader sees the old file or the whole new one
    partial.remove()
    return measured


def _measure_apart(pipe: Connection) -> None:
    """Measure what is missing of one engine and leave it in the partial file: the life of its process."""

    def measure(task: KindTask, progress: Progress) -> None:
        partial = _partial(task.config, Path(task.out))
        Sweep(task.config, make_plan(task.config), partial, progress).run(task.make_engine, (task.kind,))

    serve(pipe, measure)


def _partial(config: RealConfig, out: Path) -> PartialFile:
    return PartialFile(out.with_name(f"{out.name}.partial.jsonl"), _fingerprint(config))


def _fingerprint(config: RealConfig) -> str:
    """Return the settings that the repeats depend on, as text."""
    kept = (config.seed, config.model, config.drafter, config.engine, config.workers.tp, config.calibration)
    return msgspec.json.encode(kept).decode()


class Sweep:
    """One calibration in progress."""

    def __init__(self, config: RealConfig, plan: Plan, partial: PartialFile, progress: Progress) -> None:
        self.config = config
        self.plan = plan
        self.partial = partial
        self.progress = progress
        self.kinds: tuple[EngineKind, ...] = ("plain", "speculating") if plan.ks[-1] else ("plain",)
        self._done_work = 0.0
        self._work = sum(self._cell_work(cell, kind) for cell in plan.cells for kind in self.kinds)

    def run(self, make_engine: str, kinds: Sequence[EngineKind]) -> None:
        """Measure what is missing of engines of `kinds`; starts none that nothing is missing of."""
        make = engine_factory(make_engine)
        engines: dict[EngineKind, Engine] = {}
        try:
            for kind in kinds:
                if self._complete(kind):
                    continue
                self.progress(self._done_work, self._work, f"starting the {kind} engine")
                engines[kind] = make(self.config, kind == "speculating")
            for kind, engine in engines.items():
                self.partial.facts(_facts(engine, kind))
                self.progress(self._done_work, self._work, f"warming the {kind} engine up")
                engine.warm_up(self.plan.batches, self._ks(kind))
            self._visits(engines)
        finally:
            for engine in engines.values():  # together: vLLM's engines of one process share its process group
                engine.close()

    def measured(self) -> MeasuredPoints:
        """Return the points of all repeats so far."""
        config, plan, partial = self.config, self.plan, self.partial
        points = to_points(partial.blocks, plan)
        compiled = sum(block.compiled for block in partial.blocks)
        compiled += sum(prefill.compiled for prefill in partial.prefills)
        compiled += sum(mixed.compiled for mixed in partial.mixed)
        return MeasuredPoints(
            name=config.name,
            engine="vLLM",
            engine_version=partial.engine.version or engine_version(),
            device=device_name(config),
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            model=_model(config),
            tp=config.workers.tp,
            licence="Apache-2.0",
            notes=(*self._notes(), *self._missing()),
            graph_tokens=partial.engine.graph_tokens,
            plain_graph_tokens=partial.plain_graph_tokens,
            graph_batches=_graph_batches(config),
            chunk_tokens=partial.engine.chunk_tokens,
            points=points,
            prefill_points=to_prefill_points(partial.prefills),
            switch_points=to_switch_points(partial.blocks),
            mixed_points=to_mixed_points(partial.mixed, plan),
            settings=_settings(config),
            compiled_engine_steps=compiled,
        )

    def _ks(self, kind: EngineKind) -> tuple[int, ...]:
        return self.plan.ks if kind == "speculating" else (0,)

    def _complete(self, kind: EngineKind) -> bool:
        plan, rounds = self.plan, self._rounds()
        cells = {arrival.cell for arrival in plan.arrivals}
        return not (
            any(self._turns(kind, cell, visit) for cell in plan.cells for visit in rounds)
            or any(self._mixed_turns(kind, cell, visit) for cell in cells for visit in rounds)
        )

    def _rounds(self) -> range:
        return range(self.plan.visits)

    def _turns(self, kind: EngineKind, cell: Cell, visit: int) -> list[tuple[int, int]]:
        """Return the (repeat, k) of a visit that are not on file, K in shuffled order in each repeat."""
        if self.partial.is_stuck(kind, cell):
            return []
        turns = []
        for repeat in self.plan.repeats_of(visit):
            ks = list(self._ks(kind))
            _rng(self.config.seed, kind, cell.batch, cell.prompt_tokens, repeat).shuffle(ks)
            turns += [(repeat, k) for k in ks if not self.partial.has(kind, cell, k, repeat)]
        return turns

    def _visits(self, engines: dict[EngineKind, Engine]) -> None:
        plan, started_s = self.plan, time.perf_counter()
        benches = {
            kind: Bench(engine, kind, plan, _rng(self.config.seed, kind, "prompts"))
            for kind, engine in engines.items()
        }
        for visit in self._rounds():
            if "plain" in benches:
                self._prefills(benches["plain"], visit)
            self._arrivals(benches, visit)
            order = [(kind, cell) for kind in self.kinds for cell in plan.cells]
            _rng(self.config.seed, visit).shuffle(order)
            for kind, cell in order:
                if time.perf_counter() - started_s > plan.time_limit_s:
                    self.partial.note(f"the time limit of {plan.time_limit_s:.0f} s was reached")
                    return
                if kind in benches:
                    self._visit(benches[kind], cell, visit)
                self._done_work += self._cell_work(cell, kind) / plan.visits

    def _visit(self, bench: Bench, cell: Cell, visit: int) -> None:
        where = f"{bench.kind} engine, batch {cell.batch}, context {cell.prompt_tokens}"
        self.progress(self._done_work, self._work, where)
        try:
            for block in bench.time_engine_steps(cell, self._turns(bench.kind, cell, visit)):
                self.partial.add(block)
        except BatchNotWholeError:
            self.partial.stuck(bench.kind, cell)

    def _mixed_turns(self, kind: EngineKind, cell: Cell, visit: int) -> list[tuple[int, int, int]]:
        """Return the (repeat, k, arriving tokens) of a visit that are not on file."""
        if self.partial.is_stuck(kind, cell):
            return []
        ks = self.plan.mixed_ks if kind == "speculating" else (0,)
        return [
            (repeat, k, arrival.prompt_tokens)
            for repeat in self.plan.repeats_of(visit)
            for arrival in self.plan.arrivals
            for k in ks
            if repeat < MIXED_REPEATS
            and arrival.cell == cell
            and not self.partial.has_mixed(kind, arrival, k, repeat)
        ]

    def _arrivals(self, benches: dict[EngineKind, Bench], visit: int) -> None:
        """Time prompts that join a batch, after each size has come once untimed."""
        cells = dict.fromkeys(arrival.cell for arrival in self.plan.arrivals)
        for kind, bench in benches.items():
            for number, cell in enumerate(cells):
                turns = self._mixed_turns(kind, cell, visit)
                sizes = sorted({tokens for _, _, tokens in turns}) if visit == number == 0 else []
                where = f"{kind} engine, prompts that join a batch of {cell.batch}"
                self.progress(self._done_work, self._work, where)
                try:
                    for block in bench.time_arrivals(cell, [*((-1, 0, size) for size in sizes), *turns]):
                        if block.repeat >= 0:
                            self.partial.add(block)
                except BatchNotWholeError:
                    self.partial.note(
                        f"{kind} engine: prompts that join {cell.batch} requests were not timed"
                    )

    def _prefills(self, bench: Bench, visit: int) -> None:
        """Time prefill, each size once untimed before its first repeat."""
        for cell in self.plan.prefills:
            for repeat in self.plan.repeats_of(visit):
                if not self.partial.has_prefill(cell, repeat):
                    if repeat == 0:
                        bench.time_prefill(cell, repeat)
                    self.partial.add(bench.time_prefill(cell, repeat))

    def _cell_work(self, cell: Cell, kind: EngineKind) -> float:
        """Return how long a cell takes over all visits, in prompt tokens that could be prefilled instead."""
        engine_steps = (
            self.plan.repeats * len(self._ks(kind)) * (self.plan.engine_steps + self.plan.settle_engine_steps)
        )
        return cell.tokens() * self.plan.visits + engine_steps * ENGINE_STEP_WORK_TOKENS

    def _notes(self) -> list[str]:
        config, plan = self.config, self.plan
        drafter = config.drafter
        acceptance = (
            f"{SYNTHETIC} {', '.join(map(str, drafter.synthetic_survival))}"
            if drafter.synthetic_survival
            else "the drafter's own acceptance on made-up prompts"
        )
        weights = "random weights" if config.model.random_weights else "trained weights"
        notes = [
            f"{plan.repeats} repeats a point in {plan.visits} rounds; a repeat is the mean of "
            f"{plan.engine_steps} "
            f"engine steps, {plan.settle_engine_steps} after a change of K left out; engine_step_s is the "
            f"median of them",
            f"drafter {drafter.kind}; {weights}; {acceptance}; temperature {config.engine.temperature:g}",
            f"{config.calibration.neighbours} other engines decoded on the same machine meanwhile",
        ]
        if config.workers.tp > 1:
            notes.append("what the ranks of an engine compile is not seen: no repeat is left out for it")
        return notes

    def _missing(self) -> list[str]:
        """Say what was not measured, and why."""
        stuck = [
            f"{kind} engine: {cell.batch} requests of {cell.prompt_tokens:,} tokens do not run in one batch"
            for kind, cell in self.partial.stuck_cells
        ]
        return [*self.partial.notes, *stuck]


def in_processes_apart(config: RealConfig) -> bool:
    """Return whether each engine is measured in a process of its own, as it has to be with stock graphs."""
    return config.engine.graphs == "stock" or config.calibration.apart


def _model(config: RealConfig) -> str:
    """Return the name of the shape that is measured, how its weights are stored included."""
    name = config.model.name
    return name if config.model.quantization == "none" or name.endswith("-FP8") else f"{name}-FP8"


def _settings(config: RealConfig) -> str:
    """Return in words how the engine was set up: what a comparison with another calibration needs to know."""
    engine, weights = config.engine, config.model.quantization
    graphs = "no graphs" if engine.eager or engine.device == "cpu" else f"{engine.graphs} graphs"
    if graphs == "every_k graphs" and engine.graph_batches:
        graphs += f" of batches {', '.join(map(str, graph_batches(config)))} alone"
    words = f"{graphs}, prefix caching {'on' if engine.prefix_caching else 'off'}"
    return words if weights == "none" else f"{words}, weights {weights}"


def _graph_batches(config: RealConfig) -> tuple[int, ...]:
    """Return the batch sizes that the engine captures CUDA graphs for; none where it chooses them itself."""
    if config.engine.device == "cpu" or config.engine.eager or config.engine.graphs == "stock":
        return ()
    return graph_batches(config)


def _facts(engine: Engine, kind: EngineKind) -> Facts:
    """Return what an engine says of itself; it may say nothing."""
    return Facts(
        engine=kind,
        version=str(getattr(engine, "version", "")),
        graph_tokens=getattr(engine, "graph_tokens", None) or None,
        chunk_tokens=float(getattr(engine, "chunk_tokens", CHUNK_TOKENS)),
    )


def _rng(*key: object) -> random.Random:
    return random.Random("/".join(map(str, key)))  # noqa: S311 -- order of a measurement, not security
