"""What the committed training run says of its prompts and of its engines."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from tlt.sim.acceptance.fit import fit
from tlt.sim.acceptance.laws import PerPosition
from tlt.sim.acceptance.observations import observed
from tlt.sim.steptimes.calibration import load
from tlt.sim.validate.measured_acceptance import acceptance_on, differences
from tlt.sim.validate.training.fit import engine_factor
from tlt.sim.validate.training.run import TrainingRun
from tlt.traces.runs.runfolder import RunFolder
from tlt.traces.runs.training import prompt_kinds
from tltsched.draft_config import chain

RUN = Path("evidence/runs/h200-smollm2-train")
FROZEN = RUN / "natural/static-4-frozen"
EARLY = np.arange(2)


def test_the_kinds_beside_a_run_are_those_that_its_settings_say() -> None:
    for path in sorted(RUN.glob("*/*")):
        if not path.is_dir():
            continue
        tasks = msgspec.json.decode((path / "resolved_config.json").read_bytes())["tasks"]["names"]
        responses = RunFolder(path).responses()
        kinds = prompt_kinds(path, responses)
        assert kinds is not None
        # families take turns: examples/rl_smollm2/families.make_problem
        wanted = [tasks[number % 5] for number in (responses["step"] + responses["group"]).tolist()]
        assert kinds.tolist() == wanted


def test_a_kind_of_prompt_tells_much_of_what_a_response_accepts() -> None:
    seen = [observed(FROZEN, EARLY)]
    kinds, alike = fit(seen, by_kind=True), fit(seen)
    assert set(kinds.kinds) == {"chain_sum", "basic_arithmetic", "simple_equations", "products", "collatz"}
    hard, easy = kinds.kinds["chain_sum"], kinds.kinds["collatz"]
    assert hard.error is not None
    assert easy.error is not None
    assert hard.value - easy.value > 4 * max(hard.error, easy.error)
    between = {name: each.parameters["request_spread"].value for name, each in (("k", kinds), ("a", alike))}
    assert between["k"] < 0.8 * between["a"]
    assert alike.kinds == {}


def test_the_average_over_kinds_is_the_survival_that_was_counted() -> None:
    unlike = differences([FROZEN], EARLY)
    run = TrainingRun(FROZEN)
    responses = run.policy.responses[run.policy.responses["step"].isin(EARLY)]
    offset = unlike.offsets(FROZEN, responses)
    assert len(set(offset.round(6).tolist())) == 5
    assert differences([FROZEN], EARLY, "spread").offsets(FROZEN, responses).tolist() == [0.0] * len(
        responses
    )
    law = PerPosition((0.66, 0.57, 0.47, 0.38), "counted")
    acceptance = acceptance_on(law, unlike, "kind of prompt", FROZEN, EARLY)
    rng, tokens = np.random.default_rng(0), responses["response_tokens"].to_numpy()
    steps, accepted = 0.0, 0.0
    for _ in range(20):
        exponents = acceptance.exponents(tokens, responses["group"].to_numpy(), rng) * np.exp(offset)[:, None]
        survival = acceptance.base(chain(4)) ** exponents[:, :1]
        taken = tokens / (1.0 + survival.sum(axis=1))
        steps, accepted = steps + taken.sum(), accepted + taken @ survival[:, 0]
    assert accepted / steps == pytest.approx(0.66, abs=0.03)


def test_rollouts_of_a_run_are_told_over_what_the_calibration_says_of_them() -> None:
    run, calibration = TrainingRun(RUN / "natural/none"), load(str(RUN / "calibration.json"))
    factor = engine_factor(run, np.arange(10), calibration)
    assert 1.1 < factor < 1.3
    assert engine_factor(run, np.arange(10), calibration.times(factor)) == pytest.approx(1.0, abs=1e-9)
