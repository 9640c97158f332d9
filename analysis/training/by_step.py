"""Acceptance and rewards over the RL steps of a training comparison, as pictures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from tlt.analysis.drawing.estimates import interval_words, more_tokens, outside
from tlt.analysis.drawing.figure import Picture, draw, legend_below, policy_label, policy_style
from tlt.analysis.load import basis_of
from tlt.analysis.training.acceptance import AcceptanceFacts, StepAcceptance
from tlt.analysis.training.figures import TrainFacts
from tlt.analysis.training.run import TrainSet
from tlt.traces.common.arrays import Floats

LEAST_SPAN = 0.1  # tokens of acceptance length that a panel spans at least
_MARKED_STEPS = 40  # up to this many RL steps each one gets a marker
Drafting = tuple[int, AcceptanceFacts]


def draw_acceptance(runs: TrainSet, facts: TrainFacts) -> Picture:
    """Draw acceptance lengths by step, in the rollout and of the probes, and against the drafter's age."""
    drafting = [
        (index, policy.acceptance) for index, policy in enumerate(facts.policies) if policy.acceptance
    ]
    probed = [each for each in drafting if np.isfinite(each[1].probe_gain_sampled.value)]

    def build(figure: SubFigure) -> str:
        grid = figure.subplots(2 if probed else 1, 2, squeeze=False, width_ratios=(1.6, 1.0))
        _rollout(grid[0][0], drafting)
        _ages(grid[0][1], drafting)
        if probed:
            _probes(grid[1][0], probed)
            _gains(grid[1][1], probed)
        for axes in grid.flat:
            axes.grid()
            axes.margins(x=0.04, y=0.12)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            _spread(axes)
        for row in grid:
            row[0].set_xlabel("RL step")
        _legend(figure, runs, drafting)
        return _acceptance_title(runs, facts, drafting, probed)

    title, image = draw(build, 6.6 if probed else 3.9, basis_of(runs.runs))
    caption = (
        "Acceptance lengths count the bonus token. Top: measured in the rollouts, which mix whatever numbers "
        "of drafts the policy chose, by step and against the policy updates since the drafter was published."
    )
    if probed:
        drafts = max(int(runs.policies[index].probes["position"].max()) + 1 for index, _ in probed)
        caption += (
            " Bottom: what the served head (filled dots) and the initial head (open dots) would get accepted "
            f"of chains of {drafts} on the same responses, those of the step, at temperature 1; and the "
            "difference."
        )
    return Picture("train_acceptance", title, caption, image)


def _spread(axes: Axes) -> None:
    """Widen an axis on which noise would fill the panel."""
    low, high = axes.get_ylim()
    lacks = LEAST_SPAN - (high - low)
    if lacks > 0:
        axes.set_ylim(low - lacks / 2, high + lacks / 2)


def _marker(steps: int) -> str:
    return "o" if steps <= _MARKED_STEPS else ""


def _values(rows: Sequence[StepAcceptance], name: str) -> Floats:
    found = [getattr(row, name) for row in rows]
    return np.array([np.nan if value is None else value for value in found], dtype=np.float64)


def _rollout(axes: Axes, drafting: list[Drafting]) -> None:
    for index, facts in drafting:
        rows = facts.by_step
        axes.plot(
            _values(rows, "step"), _values(rows, "length"), marker=_marker(len(rows)), **policy_style(index)
        )
    axes.set_title("in the rollout")
    axes.set_ylabel("acceptance length\n(tokens, bonus counted)")


def _ages(axes: Axes, drafting: list[Drafting]) -> None:
    for index, facts in drafting:
        rows = [row for row in facts.by_step if row.length is not None and row.version >= 0]
        colour = policy_style(index)["color"]
        axes.scatter(_values(rows, "age_steps"), _values(rows, "length"), s=18, color=colour, alpha=0.6,
                     linewidths=0)  # fmt: skip
    axes.set_title("against the drafter's age")
    axes.set_xlabel("policy updates since it was published")


def _probes(axes: Axes, probed: list[Drafting]) -> None:
    for index, facts in probed:
        rows, style = facts.by_step, policy_style(index)
        steps, marker = _values(rows, "step"), _marker(len(rows))
        axes.plot(steps, _values(rows, "serving_sampled"), marker=marker, **style)
        axes.plot(steps, _values(rows, "initial_sampled"), marker=marker, markerfacecolor="white",
                  linewidth=1.0, **{**style, "linestyle": ":"})  # fmt: skip
    axes.set_title("heads probed on the responses of the step (dotted: the initial one)")
    axes.set_ylabel("expected acceptance length\n(tokens, bonus counted)")


def _gains(axes: Axes, probed: list[Drafting]) -> None:
    for index, facts in probed:
        rows = facts.by_step
        gains = _values(rows, "serving_sampled") - _values(rows, "initial_sampled")
        axes.plot(_values(rows, "step"), gains, marker=_marker(len(rows)), **policy_style(index))
    axes.axhline(0.0, color="#888888", linewidth=1, zorder=0)
    axes.set_title("served less initial head")
    axes.set_xlabel("RL step")
    axes.set_ylabel("tokens an engine step")


def _legend(figure: SubFigure, runs: TrainSet, drafting: list[Drafting]) -> None:
    handles = [Line2D([], [], marker="o", **policy_style(index)) for index, _ in drafting]
    labels = [policy_label(runs.runs[index].policy) for index, _ in drafting]
    legend_below(figure, handles, labels, most=4)


def _acceptance_title(
    runs: TrainSet, facts: TrainFacts, drafting: list[Drafting], probed: list[Drafting]
) -> str:
    if facts.against_frozen and np.isfinite(facts.against_frozen[0].difference.value):
        pair = facts.against_frozen[0]
        return f"{pair.trained} gets {more_tokens(pair.difference)} accepted than {pair.frozen}"
    if probed:
        index, best = max(probed, key=lambda each: abs(each[1].probe_gain_sampled.value))
        return (
            f"{policy_label(runs.runs[index].policy)}: on the same responses the served head would get "
            f"{more_tokens(best.probe_gain_sampled)} accepted than the initial one"
        )
    words = [
        f"{each.length.value:.2f} under {policy_label(runs.runs[index].policy)}" for index, each in drafting
    ]
    return f"Acceptance length with the bonus token: {', '.join(words)}"


def draw_rewards(runs: TrainSet, facts: TrainFacts) -> Picture:
    """Draw the mean reward of each step of each policy, with its interval over prompt groups."""

    def build(figure: SubFigure) -> str:
        axes = figure.subplots()
        for index, policy in enumerate(facts.policies):
            style, rows = policy_style(index), policy.rewards.by_step
            steps = [row.step for row in rows]
            axes.plot(steps, [row.reward.value for row in rows], marker=_marker(len(rows)), **style)
            banded = [(row.step, *row.reward.interval) for row in rows if row.reward.interval is not None]
            if banded:
                at, low, high = zip(*banded, strict=True)
                axes.fill_between(at, low, high, color=style["color"], alpha=0.09, linewidth=0)
        axes.set_xlabel("RL step")
        axes.set_ylabel("mean reward over prompt groups")
        axes.margins(x=0.02, y=0.06)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid()
        if len(facts.policies) > 1:
            handles = [
                Line2D([], [], marker="o", **policy_style(index)) for index in range(len(facts.policies))
            ]
            labels = [policy_label(run.policy) for run in runs.runs]
            legend_below(figure, handles, labels, most=4)
        return _reward_title(runs, facts)

    title, image = draw(build, 3.9, basis_of(runs.runs))
    count = facts.policies[0].rewards.final_steps
    span = "first and the last step" if count == 1 else f"first and the last {count} steps"
    caption = (
        "Mean reward of each RL step; bands are 95 % intervals over its prompt groups. The title "
        f"is about the {span}; policies are paired by step and prompt group. Not covered: how another seed "
        "would have trained."
    )
    return Picture("train_rewards", title, caption, image)


def _reward_title(runs: TrainSet, facts: TrainFacts) -> str:
    first = facts.policies[0].rewards
    change = f"{first.first.value:.3f} to {first.final.value:.3f}"
    words = f"Reward under {policy_label(runs.runs[0].policy)} goes from {change}"
    rivals = [(policy.policy, policy.rewards.final_difference) for policy in facts.policies[1:]]
    known = [(policy, each) for policy, each in rivals if each is not None and np.isfinite(each.value)]
    if not known:
        return words
    if not any(outside(each, 0.0) for _, each in known) and all(each.interval for _, each in known):
        widest = max(max(abs(bound) for bound in each.interval) for _, each in known if each.interval)
        return (
            f"{words}; at the end no policy is seen to differ (95 % intervals reach {widest:.3f} to a side)"
        )
    policy, each = max(known, key=lambda pair: abs(pair[1].value))
    return f"{words}; at the end {policy} differs by {interval_words(each, '')}"
