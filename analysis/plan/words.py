"""A plan in words and tables: what to run, how sure that is, and what to measure next."""

from __future__ import annotations

import math
from collections import Counter

import pandas as pd

from tlt.analysis.drawing.estimates import number
from tlt.traces.common.regret import TIE
from tlt.traces.results.answer import PolicyAnswer
from tlt.traces.results.plan import UNSETTLED, Plan, PlanFiles, unsettled

DESIGN_HEADERS = ("Design", "On-policy", "Step (s)", "USD a step", "95 %", "Step times", "Steps run")
DESIGN_NOTES = (
    "Finalists first, then the best that was dropped for each schedule and each kind of GPU. Step: seconds "
    "of an RL step that trains on as many tokens as one of the workload. 95 %: interval of what is compared, "
    "over all uncertain inputs. Left behind: so many of its responses are put off or under way at the end, "
    "the long ones among them, that its figure is not ranked. Steps run: RL steps that the figure rests on; "
    "few of them flatter schedules that put long responses off. plan.parquet has every design, and why one "
    "was dropped or left out."
)
INPUT_HEADERS = ("Uncertain input", "How far it may be off", "Loss", "Variance", "What measures it")
INPUT_NOTES = (
    "Loss: share of the step that is lost on average for not knowing this input alone. Variance: its share "
    "of that of the ratio of runner-up to best. Each design's answer to an input was simulated over the "
    "first steps and is taken to be linear."
)
LEAST_WASTE = 0.001  # of the generated tokens
FEWER = 0.0005  # of the objective: a loss that no table shows


def design_cells(found: PlanFiles) -> list[tuple[str, ...]]:
    """Return the text of the table of designs, one tuple of len(DESIGN_HEADERS) each."""
    table = found.designs
    shown = table[table["stage"] == "finalist"].sort_values("usd_per_step" if _paid(found.plan) else "step_s")
    dropped = table[table["stage"] == "dropped"]
    best = [dropped.drop_duplicates(column) for column in ("schedule", "gpu")]
    others = pd.concat(best).drop_duplicates("design")
    return [_cells(row) for _, row in pd.concat([shown, others]).iterrows()]


def _cells(row: pd.Series) -> tuple[str, ...]:
    interval = "-" if math.isnan(row["low"]) else f"{number(row['low'])} to {number(row['high'])}"
    if UNSETTLED in row["reason"]:
        interval = f"{row['reason'].split()[0]} left behind"
    return (
        row["design"], row["on_policy"], number(row["step_s"]), number(row["usd_per_step"]), interval,
        row["provenance"], f"{row['steps']}",
    )  # fmt: skip


def input_cells(plan: Plan) -> list[tuple[str, ...]]:
    """Return the text of the table of inputs, one tuple of len(INPUT_HEADERS) each."""
    return [
        (each.name, each.spread, percent(each.expected_loss), percent(each.variance_share, 0), each.command)
        for each in plan.inputs
    ]


def percent(share: float, digits: int = 1) -> str:
    """Return a share in percent; what is above 0 is never rounded to it."""
    least = 10.0**-digits / 100
    return f"< {least:.{digits}%}" if 0 < share < least else f"{share:.{digits}%}"


def plan_sentences(found: PlanFiles, best: PolicyAnswer | None = None) -> list[str]:
    """Return the answer, how sure it is, what to measure next, and what was searched.

    `best` is what is known of the run of the chosen design.
    """
    plan = found.plan
    sentences = [
        _choice(found, best),
        _known(found),
        _sureness(plan),
        _policy(found),
        _unranked(found),
        _next(plan),
        _searched(found),
    ]
    return [sentence for sentence in sentences if sentence]


def _choice(found: PlanFiles, run: PolicyAnswer | None) -> str:
    plan, best = found.plan, row_of(found, found.plan.best)
    cost = f", {number(best['usd_per_step'])} USD" if _paid(plan) else ""
    rate = ""
    if plan.step_tokens:
        rate = f"{number(best['step_s'] / plan.step_tokens * 1e6)} s of RL steps a million trained tokens, "
    thrown = ""
    if run is not None and run.wasted_share >= LEAST_WASTE:
        thrown = f" It throws {run.wasted_share:.1%} of the generated tokens away."
    return (
        f"Run {plan.best}: {rate}{number(best['step_s'])} s{cost} a step, {_unit(plan)} (95 % interval "
        f"{number(best['low'])} to {number(best['high'])}). Its step times are {best['provenance']}.{thrown}"
    )


def _known(found: PlanFiles) -> str:
    """Name the best design whose step times are not assumed, if the choice rests on a roofline."""
    plan, table = found.plan, found.designs
    best = row_of(found, plan.best)
    known = (table["provenance"] != "assumed") & ~unsettled(table)
    whole = table[(table["steps"] == best["steps"]) & known]
    if best["provenance"] != "assumed":
        return ""
    if whole.empty:
        return "No design with measured or published step times came to the last round."
    first = whole.loc[whole[_column(plan)].idxmin()]
    return (
        f"The best on {first['provenance']} step times is {first['design']}: {number(first['step_s'])} s "
        f"a step, {float(first[_column(plan)] / best[_column(plan)]):.3f} times the {_measure(plan)}."
    )


def _sureness(plan: Plan) -> str:
    if plan.runner_up is None or plan.ratio is None or plan.ratio_low is None or plan.ratio_high is None:
        return "No other design was left to compare it with."
    words = (
        f"Runner-up: {plan.runner_up}, {plan.ratio:.3f} times that (95 % interval {plan.ratio_low:.3f} to "
        f"{plan.ratio_high:.3f}); it is truly better with probability {percent(plan.runner_up_better)}, any "
        f"finalist with {percent(plan.other_better)}."
    )
    most = "" if plan.loss_high is None else f" (95 % interval up to {percent(plan.loss_high)})"
    words += (
        f" Not knowing better costs {percent(plan.expected_loss)} on average{most}, and "
        f"{percent(plan.loss_if_wrong)} where the choice is wrong."
    )
    if plan.ties:
        words += f" As good, within {TIE:.0%}: {', '.join(plan.ties)}."
    if plan.near:
        words += f" Within {TIE:.0%} by the fit alone: {', '.join(plan.near)}."
    return words


def _unranked(found: PlanFiles) -> str:
    """Name the schedules that look faster than the choice, and only for what they leave behind."""
    plan, table = found.plan, found.designs[unsettled(found.designs)]
    faster = table[table[_column(plan)] < row_of(found, plan.best)[_column(plan)]]
    if faster.empty:
        return ""
    shares = sorted({reason.split()[0] for reason in faster["reason"]}, key=lambda share: float(share[:-1]))
    left = " to ".join(dict.fromkeys((shares[0], shares[-1])))
    return (
        f"Not ranked, though their figures are lower: {', '.join(dict.fromkeys(faster['schedule']))}. After "
        f"{faster['steps'].max()} steps {left} of their responses are put off or under way, the long ones "
        "among them: give more steps (workload.steps)."
    )


def _policy(found: PlanFiles) -> str:
    plan, best = found.plan, row_of(found, found.plan.best)
    if best["on_policy"] == "yes":
        return "It is on-policy."
    named = "mixes tokens of several policies" if best["on_policy"] == "mixed" else "is not on-policy"
    if plan.best_on_policy is None:
        return f"It {named}, and no on-policy design came to the last round."
    own = row_of(found, plan.best_on_policy)
    slower = float(own[_column(plan)] / best[_column(plan)])
    return (
        f"It {named}. The best on-policy design is {plan.best_on_policy}: {number(own['step_s'])} s a step, "
        f"{slower:.3f} times the {_measure(plan)}."
    )


def _next(plan: Plan) -> str:
    if not plan.inputs or plan.runner_up is None:
        return ""
    first = plan.inputs[0]
    if first.expected_loss < FEWER:
        return (
            f"No single input is worth measuring for this choice: each loses less than {FEWER:.2%} of a "
            f"step. Most of the variance is {max(plan.inputs, key=lambda each: each.variance_share).name}."
        )
    return (
        f"To be surer, measure first: {first.name} ({first.spread}). Not knowing it alone costs "
        f"{percent(first.expected_loss)} of a step and makes {percent(first.variance_share, 0)} of the "
        f"variance: `{first.command}`."
    )


def _searched(found: PlanFiles) -> str:
    plan, table = found.plan, found.designs
    rounds = ", ".join(
        f"{each.designs:,} over {each.steps} {'step' if each.steps == 1 else 'steps'}" for each in plan.rounds
    )
    out = table[table["stage"] == "left out"]
    words = f"Searched {len(table):,} designs of at most {plan.gpus_budget} GPUs: {rounds}."
    if len(out):
        reasons = Counter(out["reason"]).most_common()
        verb = "was" if len(out) == 1 else "were"
        words += f" {len(out):,} {verb} left out: {'; '.join(f'{why} ({count})' for why, count in reasons)}."
    return words


def row_of(found: PlanFiles, design: str) -> pd.Series:
    """Return the row of a design."""
    return found.designs[found.designs["design"] == design].iloc[0]


def _paid(plan: Plan) -> bool:
    return plan.objective == "USD a step"


def _column(plan: Plan) -> str:
    return "usd_per_step" if _paid(plan) else "step_s"


def _unit(plan: Plan) -> str:
    return "compared in USD" if _paid(plan) else "compared in seconds"


def _measure(plan: Plan) -> str:
    return "cost" if _paid(plan) else "time"
