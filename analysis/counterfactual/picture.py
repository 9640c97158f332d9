"""Seconds of a step by policy, the observed ones and the bounds as lines."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tlt.analysis.drawing.estimates import number, percent
from tlt.analysis.drawing.figure import Picture, draw, legend_below, plain
from tlt.analysis.drawing.regrets import listed
from tlt.analysis.load import RunSet, basis_of
from tlt.traces.results.answer import Answer, PolicyAnswer
from tlt.traces.results.counterfactual import Counterfactual

# Grey is idle in other pictures, and darker purples are single phases.
ROLLOUT, AFTER, OBSERVED = "#6aaed6", "#c5b0d5", "#d62728"
PAPER: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}  # under a text on lines
LINE_ROWS = 0.5  # height of a bound's label, in bars


def draw_counterfactual(case: Counterfactual, answer: Answer, runs: RunSet) -> Picture:
    """Draw a bar a policy with its interval."""

    def build(figure: SubFigure) -> str:
        axes = figure.subplots()
        logged = case.logged("step")
        longest = max(
            [_reach(policy, answer.policies[0]) for policy in answer.policies]
            + ([logged.mean_s] if logged else [])
        )
        axes.set_xlim(0, longest * 1.24)
        axes.set_ylim(len(answer.policies) - 0.4, -0.6 - LINE_ROWS * len(answer.ceilings))
        for row, policy in enumerate(answer.policies):
            _bar(axes, row, policy, answer.policies[0], longest)
        _lines(axes, answer, longest)
        if logged is not None:
            axes.plot([logged.mean_s] * 2, [-0.5, len(answer.policies) - 0.5], color=OBSERVED, linewidth=1.4)
        axes.set_yticks(range(len(answer.policies)), [plain(policy.policy) for policy in answer.policies])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x")
        axes.set_xlabel(f"seconds of an RL step (mean of {answer.steps})")
        _legend(figure, logged is not None, any(policy.clairvoyant for policy in answer.policies))
        return title_of(answer)

    height = 0.4 * (len(answer.policies) + LINE_ROWS * len(answer.ceilings)) + 1.9
    title, image = draw(build, height, basis_of(runs.runs))
    caption = (
        "Mean seconds of an RL step on the lengths of the observed run, the rollout in blue and what follows "
        "it in purple. The thin line on a bar is the 95 % interval of its speedup, as seconds. Dashed lines "
        "are bounds under what their labels say, drawn at the bars of the schedules that they hold for. "
        "Seconds are of steps that train on as many tokens as the observed ones."
    )
    return Picture("counterfactual", title, caption, image)


def title_of(answer: Answer) -> str:
    """Return what the picture says."""
    policies = {policy.policy: policy for policy in answer.policies}
    best, base = policies[answer.best], answer.policies[0]
    if best is base:
        return f"No ranked policy is faster than {plain(base.policy)}"
    share = f"{best.step_s / base.step_s:.0%}"
    return f"{plain(best.policy)} would take {share} of the time of {plain(base.policy)}{_doubt(answer)}"


def _doubt(answer: Answer) -> str:
    """Return what the title says of the choice: its ties, or what may be lost above the tolerance."""
    found = answer.regrets
    if found is None:
        return ""
    if found.group:
        return f", a tie with {plain(listed(found.group))}"
    return "" if found.highest <= found.tolerance else f"; up to {percent(found.highest)} may be lost"


def _interval_s(policy: PolicyAnswer, base: PolicyAnswer) -> tuple[float, float] | None:
    """Return the interval of the speedup as seconds of a step."""
    if policy is base or policy.speedup.interval is None:
        return None
    low, high = policy.speedup.interval
    return base.step_s / high, base.step_s / low


def _reach(policy: PolicyAnswer, base: PolicyAnswer) -> float:
    ends = _interval_s(policy, base)
    return max(policy.step_s, ends[1]) if ends else policy.step_s


def _bar(axes: Axes, row: int, policy: PolicyAnswer, base: PolicyAnswer, longest: float) -> None:
    hatch: dict[str, Any] = {"hatch": "///", "edgecolor": "white"} if policy.clairvoyant else {}
    axes.barh(row, policy.rollout_s, height=0.66, color=ROLLOUT, linewidth=0, **hatch)
    axes.barh(
        row,
        policy.step_s - policy.rollout_s,
        left=policy.rollout_s,
        height=0.66,
        color=AFTER,
        linewidth=0,
        **hatch,
    )
    ends = _interval_s(policy, base)
    if ends:
        axes.plot(ends, [row, row], color="#000000", linewidth=1.4, solid_capstyle="butt")
    gain = "" if policy is base else f", {policy.speedup.value:.2f}x"
    axes.text(
        _reach(policy, base) + 0.012 * longest,
        row,
        f"{number(policy.step_s)} s{gain}",
        va="center",
        fontsize=8.5,
        bbox=PAPER,
    )


def _lines(axes: Axes, answer: Answer, longest: float) -> None:
    """Draw each bound through the bars that it holds for; the lowest has the topmost label."""
    for index, limit in enumerate(sorted(answer.ceilings, key=lambda limit: limit.seconds)):
        at, row = limit.seconds, -0.6 - LINE_ROWS * (len(answer.ceilings) - index - 0.5)
        style: dict[str, Any] = {"color": "#000000", "linewidth": 0.8}
        axes.plot([at, at], [row - 0.2, row + 0.2], linestyle="-", **style)
        for bar, policy in enumerate(answer.policies):
            if policy.keeps_order or not limit.in_order:
                axes.plot([at, at], [bar - 0.42, bar + 0.42], linestyle="--", **style)
        label = f"{number(limit.seconds)} s: {limit.words}"
        axes.text(at + 0.008 * longest, row, label, fontsize=7.5, va="center")


def _legend(figure: SubFigure, logged: bool, bound: bool) -> None:
    handles: list[Line2D | Patch] = [
        Patch(facecolor=ROLLOUT, label="rollout"),
        Patch(facecolor=AFTER, label="phases after it"),
        Line2D([], [], color="#000000", linewidth=1.4, label="95 % interval"),
    ]
    if logged:
        handles.append(Line2D([], [], color=OBSERVED, linewidth=1.4, label="observed"))
    if bound:
        handles.append(
            Patch(facecolor=ROLLOUT, hatch="///", edgecolor="white", label="knows lengths: nobody can run it")
        )
    legend_below(figure, handles)
