"""Searches the best design under a budget of GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tlt.sim.advise.sensitivity import probe_of
from tlt.sim.parallel.executors import Executor
from tlt.sim.parallel.timing import Timing, simulate_all
from tlt.sim.search.choose import Decision, Finalist, decide, response_of
from tlt.sim.search.space import Candidate, Design, Space
from tlt.sim.search.successive_halving import Tried, best_by_hardware, halve
from tlt.sim.search.unknowns import Uncertain, inputs_of, probes
from tlt.sim.simulation import Simulation
from tlt.traces.lengths.schema import Trace
from tlt.traces.results.plan import SearchRound
from tltsched.errors import InputError

FINALISTS = 3  # the best of all, and as many of other hardware; the reference and the best on-policy one
WITHIN = 1.5  # of the best: hardware that errors of step times could put ahead of it
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is asked: the best design of a space on one workload."""

    space: Space
    prices: Mapping[str, float]  # USD per GPU and hour; empty: seconds are compared, whatever the GPUs cost
    trace: Trace
    seed: int

    def __post_init__(self) -> None:
        """Raise InputError where a GPU has no price and others have."""
        missing = [gpu for gpu in self.space.gpus if self.prices and gpu not in self.prices]
        if missing:
            fix = f"add {', '.join(missing)}"
            raise InputError("--price", ", ".join(self.prices), ", ".join(self.space.gpus), fix)

    @property
    def step_tokens(self) -> float:
        """Response tokens of a mean step."""
        rows = self.trace.rows
        return float(rows["response_tokens"].sum()) / int(rows["step"].nunique())

    def scale(self, design: Design) -> float:
        """Return the objective of one second a trained token."""
        if not self.prices:
            return self.step_tokens
        return self.step_tokens * design.gpus * self.prices[design.gpu] / 3600.0

    def objective(self, candidate: Candidate, timing: Timing) -> float:
        """Return seconds, or USD, of a step that trains on as many tokens as one of the workload."""
        return self.scale(candidate.design) * timing.s_per_token()


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """What a search found."""

    task: Task
    decision: Decision  # its indices count `finalists` and `judged`
    finalists: list[Tried]  # the reference first
    judged: list[Finalist]
    inputs: list[Uncertain]
    tried: list[Tried]
    left_out: dict[Design, str]  # design -> why it could not run
    rounds: list[SearchRound]


class Planner:
    """One search; the executor carries out all of its rounds."""

    def __init__(self, task: Task, executor: Executor, progress: Progress) -> None:
        self.task, self.executor, self.progress = task, executor, progress

    def search(self, candidates: Sequence[Candidate], left_out: dict[Design, str]) -> SearchResult:
        """Search among the designs that can run; raises InputError if there is none."""
        task = self.task
        if not candidates:
            reasons = "; ".join(dict.fromkeys(left_out.values()))
            raise InputError(
                "--gpus-budget", task.space.gpus_budget, "a budget and designs that fit", reasons
            )
        whole, dropped, rounds = halve(
            candidates, task.trace, task.objective, lambda part: self._simulate(part, "searching")
        )
        tried = [*whole, *dropped]
        settled = [each for each in whole if not each.timing.unsettled]
        finalists = self._finalists(settled or whole, tried)
        chosen = [each.candidate for each in finalists]
        inputs = inputs_of(chosen)
        judged = [
            Finalist(
                design=str(each.candidate.design),
                timing=each.timing,
                scale=task.scale(each.candidate.design),
                response=response,
            )
            for each, response in zip(finalists, self._responses(chosen, inputs), strict=True)
        ]
        return SearchResult(
            task=task, decision=decide(judged, inputs, task.seed), finalists=finalists, judged=judged,
            inputs=inputs, tried=tried, left_out=left_out, rounds=rounds,
        )  # fmt: skip

    def _simulate(self, simulations: Sequence[Simulation], words: str) -> list[Timing]:
        return simulate_all(simulations, self.executor, lambda: self.progress(words))

    def _finalists(self, whole: list[Tried], tried: list[Tried]) -> list[Tried]:
        """Return the reference, the best of all, on-policy, and of each near hardware, each once."""
        reference = self._reference(whole, tried)
        chosen = [reference, *whole[:FINALISTS]]
        chosen += [each for each in whole if each.candidate.on_policy == "yes"][:1]
        known = {each.candidate.design.hardware for each in chosen}
        rivals = [
            each for each in best_by_hardware(whole)
            if each.objective < WITHIN * whole[0].objective and each.candidate.design.hardware not in known
        ]  # fmt: skip
        chosen += rivals[:FINALISTS]
        return list({each.candidate.design: each for each in chosen}.values())

    def _reference(self, whole: list[Tried], tried: list[Tried]) -> Tried:
        """Return the best design with the first schedule and policy named, over all steps.

        One that was dropped is simulated to the end, and takes its place in `tried`.
        """
        task = self.task
        policies, schedules = task.space.policies, task.space.schedules
        plain = [
            each for each in tried
            if (each.candidate.design.policy, each.candidate.design.schedule) == (policies[0], schedules[0])
        ]  # fmt: skip
        if not plain:
            return whole[0]
        best = min(plain, key=lambda each: (-each.steps, each.objective))
        steps = int(task.trace.rows["step"].nunique())
        if best.steps == steps:
            return best
        (timing,) = self._simulate([best.candidate.simulation], "searching")
        again = Tried(best.candidate, timing, steps, task.objective(best.candidate, timing))
        tried[tried.index(best)] = again
        return again

    def _responses(
        self, finalists: list[Candidate], inputs: list[Uncertain]
    ) -> list[dict[tuple[str, str], float]]:
        """Simulate how each finalist answers to each input, on the first steps."""
        part = probe_of(self.task.trace)
        asked = [probes(each, inputs, part) for each in finalists]
        simulations = [
            simulation
            for each, probed in zip(finalists, asked, strict=True)
            for simulation in (each.simulation.on(part), *probed.values())
        ]
        timings = iter(self._simulate(simulations, "probing"))
        return [response_of(next(timings), {key: next(timings) for key in probed}) for probed in asked]
