"""Records of policies in turn on natural responses: `python -m evidence.natural_claims FOLDER`, which
`python -m evidence.natural DEVICE FOLDER` wrote.

Responses of a policy are as long as its own sampling made them, so that rollouts of two policies differ by
what they were given to do. Policies are therefore compared by their seconds over those that the model takes
for the very same responses without speculation.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from evidence.acceptance_claims import DETAILS, rollouts_s
from evidence.recording import OTHERS, refuse_losses, write, write_raw
from tlt.sim.acceptance.laws import PerPosition
from tlt.sim.model.drafter import DrafterConfig
from tlt.sim.model.phases import Phases
from tlt.sim.steptimes.calibration import Calibration, load
from tlt.sim.validate.measured_acceptance import Detail, Differences, acceptance_on, differences
from tlt.sim.validate.replay_measured import (
    MeasuredPolicy,
    costs_of,
    predicted_engine_steps,
    simulate_into,
)
from tlt.traces.common.arrays import Ints
from tlt.traces.runs.acceptance_counts import NOTHING, position_counts
from tlt.traces.runs.engine_steps import read_engine_steps
from tlt.traces.runs.runfolder import RunFolder
from tlt.traces.sources import open_runs
from tltsched.draft_config import chain

SEEDS = 8
AIM = 0.05
COMMAND = "python -m evidence.natural {device} OUT && python -m evidence.natural_claims OUT"


def main(folder: Path) -> None:
    """Predict the second half of the rollouts, compare the policies, and write both records."""
    calibration = load(str(folder / "calibration.json"))
    policies = [MeasuredPolicy(path) for path in open_runs(folder / "replay").folders]
    refuse_losses(policy.path for policy in policies)
    if policies[0].drafts or policies[0].summary.steps < 2:
        sys.exit("two rollouts or more, and no speculation as the first policy, are needed")
    steps = np.arange(policies[0].summary.steps)
    fitted, judged = np.array_split(steps, 2)
    rows = [
        row for policy in policies if policy.drafts
        for detail in DETAILS
        for row in predicted(policy, policies, calibration, detail, fitted, judged)
    ]  # fmt: skip
    turns = compared(policies, calibration)
    over = engine_steps_over(policies, calibration)
    over |= {
        f"engine steps as recorded, {each.summary.policy}": as_recorded(each, calibration, judged)
        for each in policies
    }
    tell_predicted(rows, turns, over, policies[0], len(fitted), calibration)
    tell_compared(turns, policies[0], calibration)


def predicted(
    policy: MeasuredPolicy, policies: list[MeasuredPolicy], calibration: Calibration, detail: Detail,
    fitted: Ints, judged: Ints,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return a row a draw: errors of the rollouts that the law was fitted on, and of the others."""
    drafting = [each for each in policies if each.drafts]
    counts = position_counts([record for each in drafting for record in each.records()])
    total = sum((counts.get(step, NOTHING) for step in fitted.tolist()), NOTHING)
    law = PerPosition(tuple(total.survival().tolist()), "measured: the first half of the rollouts")
    unlike = differences([each.path for each in drafting], fitted, detail)
    acceptance = acceptance_on(law, unlike, detail, policy.path, fitted)
    measured_s, setup = rollouts_s(RunFolder(policy.path).steps()), policy.setup
    rows = []
    for seed in range(SEEDS):
        policy.setup = msgspec.structs.replace(setup, seed=seed)
        with TemporaryDirectory() as name:
            path = Path(name) / "run"
            drafter = DrafterConfig(exists=True)
            simulate_into(path, policy, calibration, acceptance, drafter, Phases(), unlike)
            simulated_s = rollouts_s(RunFolder(path).steps())
        rows.append(
            {
                "policy": policy.summary.policy, "detail": detail, "seed": seed,
                "judged": float(simulated_s[judged].sum() / measured_s[judged].sum() - 1),
                "fitted": float(simulated_s[fitted].sum() / measured_s[fitted].sum() - 1),
            }
        )  # fmt: skip
    policy.setup = setup
    return rows


def tell_predicted(
    rows: list[dict[str, Any]], turns: list[dict[str, Any]], steps: dict[str, float],
    policy: MeasuredPolicy, fitted: int, calibration: Calibration,
) -> None:  # fmt: skip
    """Write the record of the prediction; without drafts it is that of step times alone."""
    plain = [turn for turn in turns if turn["policy"] == policy.summary.policy and turn["rollout"] >= fitted]
    plain_error = sum(turn["plain_s"] for turn in plain) / sum(turn["measured_s"] for turn in plain) - 1.0
    table = pd.DataFrame(rows)
    mean = table.groupby(["policy", "detail"])["judged"].mean()
    best = mean.xs(DETAILS[-1], level="detail")
    draws = table[table["detail"] == DETAILS[-1]].groupby("policy")["judged"].std()
    name = f"natural_predicted_{_device(calibration)}"
    write(
        name,
        claim=f"rollout seconds of prompts that nothing was fitted on, {_what(policy)}, by policy and what "
        "is used of how requests differ",
        value={
            f"{detail}, {drafting}": round(float(mean[drafting, detail]), 3)
            for drafting, detail in mean.index
        }
        | {policy.summary.policy: round(plain_error, 3)}
        | {f"{drafting}, sd over draws": round(float(each), 3) for drafting, each in draws.items()}
        | steps
        | {
            f"{DETAILS[-1]}, {drafting}, over its engine steps as recorded": round(
                float((1.0 + each) / (1.0 + steps[f"engine steps as recorded, {drafting}"]) - 1.0), 3
            )
            for drafting, each in best.items()
        },
        unit={OTHERS: "share"} | {name: "x" for name in steps if "calibrated" in name},
        target=f"within {AIM:.0%} in every policy",
        met=bool((best.abs() <= AIM).all()) and abs(plain_error) <= AIM,
        how=f"modelled against measured, mean of {SEEDS} draws; acceptance fitted to the first {fitted} "
        f"rollouts of all policies that draft, {policy.summary.steps - fitted} others predicted; step times "
        "calibrated on the same engine before. Engine steps as recorded take no acceptance and no decision: "
        "what the prediction is off beyond them is theirs, the rest is the speed of the machine, which "
        "`median engine step` tells by rollout",
        measured_on=f"{calibration.device}, vLLM {calibration.engine_version}",
        command=COMMAND.format(device=_device(calibration)),
        raw=write_raw(f"{name}.points.jsonl", rows),
    )


def engine_steps_over(policies: list[MeasuredPolicy], calibration: Calibration) -> dict[str, float]:
    """Return measured over calibrated seconds of engine steps that only decode, with and without drafts.

    And the median of each rollout's, in the fastest rollout and in the slowest: how even the host was.
    """
    rows = pd.concat([decoding(each, calibration).assign(policy=each.path.name) for each in policies])
    sums = rows.groupby(rows["k"] > 0)[["seconds", "predicted_s"]].sum()
    ratio = (sums["seconds"] / sums["predicted_s"]).round(3)
    each = (rows["seconds"] / rows["predicted_s"]).groupby([rows["policy"], rows["step"]]).median().round(3)
    return {
        "engine steps with drafts, measured over calibrated": float(ratio[True]),
        "engine steps without, measured over calibrated": float(ratio[False]),
        "median engine step over calibrated, fastest rollout": float(each.min()),
        "median engine step over calibrated, slowest rollout": float(each.max()),
    }


def as_recorded(policy: MeasuredPolicy, calibration: Calibration, judged: Ints) -> float:
    """Return what the law takes for the engine steps as they were, over what the rollouts took, less one.

    No acceptance and no decision is in it: what is left of the error of a prediction is theirs.
    """
    steps = engine_steps_of(policy, calibration)
    modelled_s = steps.loc[steps["step"].isin(judged), "modelled_s"].sum()
    measured_s = rollouts_s(RunFolder(policy.path).steps())[judged].sum()
    return round(float(modelled_s / measured_s - 1.0), 3)


def engine_steps_of(policy: MeasuredPolicy, calibration: Calibration) -> pd.DataFrame:
    """Return the engine steps of a run with the seconds that a law takes for each, `modelled_s`."""
    costs, steps = costs_of(policy, calibration), read_engine_steps(policy.path)
    rows = predicted_engine_steps(policy, costs)
    assert rows is not None
    assert steps is not None
    modelled_s, prompts = rows["predicted_s"].to_numpy(copy=True), steps["prompt_tokens"].to_numpy()
    batch, context, k = (steps[name].to_numpy() for name in ("batch", "context_tokens", "k"))
    for place in np.flatnonzero(prompts).tolist():
        tokens = float(prompts[place])
        draft, beside = chain(int(k[place])), int(batch[place])
        modelled_s[place] = costs.mixed_s(draft, beside, float(context[place]), tokens, tokens**2)
    return steps.assign(modelled_s=modelled_s)


def decoding(policy: MeasuredPolicy, calibration: Calibration) -> pd.DataFrame:
    """Return the engine steps of a run that prefill nothing, with the seconds that the calibration takes."""
    rows = predicted_engine_steps(policy, costs_of(policy, calibration))
    prompts = read_engine_steps(policy.path, "prompt_tokens")
    assert rows is not None
    assert prompts is not None
    alone: pd.DataFrame = rows[prompts["prompt_tokens"].to_numpy() == 0]
    return alone


def compared(policies: list[MeasuredPolicy], calibration: Calibration) -> list[dict[str, Any]]:
    """Return a row a policy and rollout: its seconds, and the model's for its responses without drafts."""
    rows = []
    for policy in policies:
        plain = MeasuredPolicy(policies[0].path)
        plain.responses = policy.responses
        with TemporaryDirectory() as name:
            path, drafter = Path(name) / "run", DrafterConfig(exists=False)
            simulate_into(path, plain, calibration, None, drafter, Phases(), Differences())
            plain_s = rollouts_s(RunFolder(path).steps())
        tokens = policy.responses.groupby("step")["response_tokens"].sum().to_numpy()
        calibrated = decoding(policy, calibration).groupby("step")["predicted_s"].sum().to_numpy()
        rows += [
            {"policy": policy.summary.policy, "rollout": rollout, "measured_s": round(float(measured), 4),
             "plain_s": round(float(modelled), 4), "response_tokens": int(count),
             "calibrated_s": round(float(taken), 4)}
            for rollout, (measured, modelled, count, taken) in enumerate(
                zip(rollouts_s(RunFolder(policy.path).steps()), plain_s, tokens, calibrated, strict=True)
            )
        ]  # fmt: skip
    return rows


def tell_compared(rows: list[dict[str, Any]], policy: MeasuredPolicy, calibration: Calibration) -> None:
    """Write the record of the comparison."""
    table = pd.DataFrame(rows)
    ratio = (table["measured_s"] / table["plain_s"]).groupby(table["policy"])
    mean, error = ratio.mean(), ratio.sem()
    even = (table["calibrated_s"] / table["plain_s"]).groupby(table["policy"]).mean()
    statics = [each for each in mean.index if each == "none" or each.startswith("static")]
    best = min(statics, key=lambda each: mean[each])
    rules = [each for each in mean.index if each.startswith("goodput")]
    new = next(each for each in rules if not each.startswith("goodput_mean"))
    old = next((each for each in rules if each.startswith("goodput_mean")), None)
    name = f"natural_policies_{_device(calibration)}"
    others = [each for each in mean.index if each != best]
    tax = next((f"; {note}" for note in calibration.notes if note.startswith("K = 0 over")), "")
    value = {f"{each} over {best}": round(float(mean[each] / mean[best]), 3) for each in others}
    value |= {f"{each}, standard error": round(float(error[each] / mean[best]), 3) for each in mean.index}
    value |= {
        f"{each} over {best}, engine steps at calibrated times": round(float(even[each] / even[best]), 3)
        for each in others
    }
    unsure = {each: 2.0 * float(np.hypot(error[new], error[each])) for each in (best, *filter(None, [old]))}
    write(
        name,
        claim=f"policies in turn on one engine, {_what(policy)}: seconds of a rollout over those of the best "
        "static K, no drafts at all counted as one",
        value=value,
        unit={OTHERS: "x"},
        target="goodput at most 1 % behind the best static K, and ahead of the rule before it, by more than "
        "two standard errors each",
        met=bool(
            mean[new] + unsure[best] <= 1.01 * mean[best]
            and (old is None or mean[new] + unsure[old] < mean[old])
        ),
        how="measured; each rollout's seconds over those that the model takes for the very same responses "
        f"without speculation, as responses of policies differ; {policy.summary.steps} rollouts a policy, "
        "order rotating, one standard error given; beside them the engine steps that each took, those of "
        f"prefill left out, at calibrated times, which no unevenness of the host changes{tax}",
        measured_on=f"{calibration.device}, vLLM {calibration.engine_version}",
        command=COMMAND.format(device=_device(calibration)),
        raw=write_raw(f"{name}.points.jsonl", rows),
    )


def _what(policy: MeasuredPolicy) -> str:
    responses = policy.responses
    running = policy.settings.engine.max_running
    return (
        f"{len(responses) // policy.summary.steps} natural responses of at most "
        f"{int(responses['response_tokens'].max()):,} tokens, {running} running"
    )


def _device(calibration: Calibration) -> str:
    return "cuda" if "NVIDIA" in calibration.device else "cpu"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
