"""Searches the best design under a budget of GPUs, and leaves a plan beside the runs of its finalists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tlt.sim.advise.sensitivity import first_steps
from tlt.sim.config import resolve
from tlt.sim.parallel import Job, Timing, simulate_all
from tlt.sim.search.choose import Decision, Finalist, decide, response_of
from tlt.sim.search.space import Candidate, Design, Space, candidates
from tlt.sim.search.successive_halving import Tried, best_by_hardware, halve
from tlt.sim.search.unknowns import Uncertain, inputs_of, probes
from tlt.sim.workload import load_workload
from tlt.traces.results.plan import Rung
from tltsched.errors import InputError

FINALISTS = 3  # the best of all, and as many of other hardware; the reference and the best on-policy one
WITHIN = 1.5  # of the best: hardware that errors of step times could put ahead of it
PROBE_STEPS = 3
Progress = Callable[[str], None]


class Planner:
    """One search."""

    def __init__(
        self, settings: dict[str, Any], space: Space, prices: Mapping[str, float], processes: int,
        progress: Progress,
    ) -> None:  # fmt: skip
        """`prices` are USD per GPU and hour; without them seconds are compared, whatever the GPUs cost."""
        self.settings, self.space, self.prices = settings, space, dict(prices)
        self.processes, self.progress = processes, progress
        missing = [gpu for gpu in space.gpus if prices and gpu not in prices]
        if missing:
            raise InputError("--price", ", ".join(prices), ", ".join(space.gpus), f"add {', '.join(missing)}")
        base = resolve(settings, "none")
        self.seed = base.run.seed
        self.trace = load_workload(base.workload, self.seed)
        steps = self.trace.rows["step"].nunique()
        self.step_tokens = float(self.trace.rows["response_tokens"].sum()) / steps
        self.rungs: list[Rung] = []
        self.tried: list[Tried] = []
        self.left_out: dict[Design, str] = {}
        self.finalists: list[Tried] = []  # the reference first
        self.judged: list[Finalist] = []
        self.inputs: list[Uncertain] = []

    def search(self) -> Decision:
        """Search and decide; what was found stays in the attributes. Raises InputError if nothing fits."""
        found, self.left_out = candidates(self.settings, self.space, self.trace)
        if not found:
            reasons = "; ".join(dict.fromkeys(self.left_out.values()))
            raise InputError(
                "--gpus-budget", self.space.gpus_budget, "a budget and designs that fit", reasons
            )
        whole, dropped, self.rungs = halve(
            found, self.trace, self.objective, lambda jobs: self._simulate(jobs, "searching")
        )
        self.tried = [*whole, *dropped]
        self.finalists = self._finalists(whole)
        chosen = [each.candidate for each in self.finalists]
        self.inputs = inputs_of(chosen)
        self.judged = [
            Finalist(
                design=str(each.candidate.design),
                timing=each.timing,
                scale=self.scale(each.candidate),
                response=response,
            )
            for each, response in zip(self.finalists, self._responses(chosen), strict=True)
        ]
        return decide(self.judged, self.inputs, self.seed)

    def scale(self, candidate: Candidate) -> float:
        """Return the objective of one second a trained token."""
        if not self.prices:
            return self.step_tokens
        design = candidate.design
        return self.step_tokens * design.gpus * self.prices[design.gpu] / 3600.0

    def objective(self, candidate: Candidate, timing: Timing) -> float:
        """Return seconds, or USD, of a step that trains on as many tokens as one of the workload."""
        return self.scale(candidate) * timing.s_per_token()

    def _simulate(self, jobs: Sequence[Job], words: str) -> list[Timing]:
        return simulate_all(jobs, self.processes, lambda: self.progress(words))

    def _finalists(self, whole: list[Tried]) -> list[Tried]:
        """Return the reference, the best of all, on-policy, and of each near hardware, each once."""
        reference = self._reference(whole)
        chosen = [reference, *whole[:FINALISTS]]
        chosen += [each for each in whole if each.candidate.on_policy == "yes"][:1]
        known = {each.candidate.design.hardware for each in chosen}
        rivals = [
            each for each in best_by_hardware(whole)
            if each.objective < WITHIN * whole[0].objective and each.candidate.design.hardware not in known
        ]  # fmt: skip
        chosen += rivals[:FINALISTS]
        return list({each.candidate.design: each for each in chosen}.values())

    def _reference(self, whole: list[Tried]) -> Tried:
        """Return the best design with the first schedule and policy named, over all steps."""
        policies, schedules = self.space.policies, self.space.schedules
        plain = [
            each for each in self.tried
            if (each.candidate.design.policy, each.candidate.design.schedule) == (policies[0], schedules[0])
        ]  # fmt: skip
        if not plain:
            return whole[0]
        best = min(plain, key=lambda each: (-each.steps, each.objective))
        steps = int(self.trace.rows["step"].nunique())
        if best.steps == steps:
            return best
        (timing,) = self._simulate([Job(best.candidate.config, self.trace)], "searching")
        again = Tried(best.candidate, timing, steps, self.objective(best.candidate, timing))
        self.tried[self.tried.index(best)] = again
        return again

    def _responses(self, finalists: list[Candidate]) -> list[dict[tuple[str, str], float]]:
        """Simulate how each finalist answers to each input, on the first steps."""
        part = first_steps(self.trace, PROBE_STEPS)
        asked = [probes(each, self.inputs, part) for each in finalists]
        jobs = [
            job
            for each, probed in zip(finalists, asked, strict=True)
            for job in (Job(each.config, part), *probed.values())
        ]
        timings = iter(self._simulate(jobs, "probing"))
        found = []
        for probed in asked:
            base = next(timings)
            found.append(response_of(base, {key: next(timings) for key in probed}))
        return found
