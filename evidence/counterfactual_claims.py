"""Claims about `tlt sim counterfactual`, from the committed training run alone."""

from __future__ import annotations

import tempfile
from pathlib import Path

from evidence.recording import OTHERS, tlt, write
from evidence.training_claims import DATA, GOODPUT, NATURAL, TRAINED_ON, policy_of, survival
from tlt.traces.results.counterfactual import read_counterfactual
from tlt.traces.runs.runfolder import RunFolder, run_name

POLICIES = {
    "goodput:off+2+3+4+6": GOODPUT,
    "static:4": "static-4-frozen",
    "tlt_chains": "tlt_chains-online",
}  # policy -> the folder in which it was run

WORST = "largest error of a speedup"


def counterfactual_h200() -> None:
    """What the run without speculation says that speculation would have gained, against what it did gain."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        rates = survival(GOODPUT, steps=range(10))
        settings = (
            f"cost.source={DATA / 'calibration.json'}", "acceptance.kind=per_position",
            f"acceptance.survival_by_position={rates}",
        )  # fmt: skip
        assignments = [part for setting in settings for part in ("--set", setting)]
        policies = ",".join(("none", *POLICIES))
        where = ("--no-report", "--out", str(out))
        tlt("sim", "counterfactual", str(NATURAL / "none"), *assignments, "--policies", policies, *where)
        answer = read_counterfactual(out)
        walls = {policy: RunFolder(out / run_name(policy)).summary().wall_s for policy in ("none", *POLICIES)}
    value: dict[str, float] = {}
    assert answer.fit is not None
    for error in answer.fit.errors:
        value[f"error of the reproduced {error.quantity}"] = round(error.error.value, 4)
    for policy, run in POLICIES.items():
        measured = policy_of(NATURAL, run)["time"]["step_speedup"]["value"]
        value[f"{policy} predicted"] = round(walls["none"] / walls[policy], 3)
        value[f"{policy} measured"] = round(measured, 3)
    predicted = [value[f"{policy} predicted"] for policy in POLICIES]
    measured_speedups = [value[f"{policy} measured"] for policy in POLICIES]
    worst = max(abs(a / b - 1) for a, b in zip(predicted, measured_speedups, strict=True))
    write(
        "counterfactual_h200",
        claim="a training run without speculation asked what speculation would have gained end to end, "
        "against what it gained when it was run (SmolLM2-135M, four H200, 20 steps)",
        value=value | {WORST: round(worst, 4)},
        unit={OTHERS: "x", **{name: "share" for name in value if "error" in name}, WORST: "share"},
        measured_on=TRAINED_ON,
        target="speedups within 15 %, ranking right",
        met=worst <= 0.15 and predicted == sorted(predicted, reverse=True),
        how=f"modelled against measured (seconds of steps 10 to 19): one factor on the calibrated step times "
        f"fitted to the run; acceptance {rates} measured in steps 0 to 9 of the first policy; drafter "
        "training is not simulated",
    )


COUNTERFACTUAL = (counterfactual_h200,)
