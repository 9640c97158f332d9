"""Pictures of a training comparison: time of a step, Amdahl's law, and lengths."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from tlt.analysis.comparison.drawn.gantt import draw_gantt, median_step
from tlt.analysis.comparison.drawn.idle_bars import draw_bars
from tlt.analysis.drawing.estimates import change, number
from tlt.analysis.drawing.figure import (
    BAND,
    CAUSE_COLOURS,
    INK,
    PAPER,
    Picture,
    draw,
    legend_below,
    policy_label,
    policy_legend,
    policy_style,
)
from tlt.analysis.ledger import book
from tlt.analysis.load import basis_of
from tlt.analysis.training.by_step import draw_acceptance, draw_rewards
from tlt.analysis.training.facts import AmdahlFacts, PolicyFacts
from tlt.analysis.training.figures import TrainFacts, amdahl
from tlt.analysis.training.lengths import longest_and_median
from tlt.analysis.training.run import TrainRun, TrainSet
from tlt.analysis.training.time import PHASES
from tlt.traces.common.intervals import Estimate

PHASE_COLOURS = {
    "rollout": CAUSE_COLOURS["decode"],
    "handover": CAUSE_COLOURS["preempt_wait"],
    "other": CAUSE_COLOURS["other"],
}
GAP_SHARE = 0.008  # of the longest step, between a bar and its figures
_LABEL_FROM = 0.05  # of the longest step: a narrower part of a bar has no room for its figure


def draw_training(runs: TrainSet, facts: TrainFacts) -> list[Picture]:
    """Draw all pictures; those of a second policy, drafting or several steps only where there are any."""
    pictures = [draw_step_time(runs, facts)]
    if len(runs.policies) > 1:
        pictures.append(draw_amdahl(runs, facts))
    if any(policy.acceptance for policy in facts.policies):
        pictures.append(draw_acceptance(runs, facts))
    pictures += [draw_rewards(runs, facts), draw_train_lengths(runs, facts)]
    ledgers = tuple(book(run.summary, run.intervals) for run in runs.runs)
    pictures.append(draw_bars(runs.runs, ledgers))
    step = median_step(runs.runs[0])
    return [*pictures, draw_gantt(runs.runs, step)] if step is not None else pictures


def draw_step_time(runs: TrainSet, facts: TrainFacts) -> Picture:
    """Draw the mean RL step of each policy as a bar of its phases."""
    longest_s = max(policy.time.step_s.value for policy in facts.policies)

    def build(figure: SubFigure) -> str:
        axes = figure.subplots()
        for row, policy in enumerate(facts.policies):
            _bar(axes, row, policy, longest_s)
        axes.set_xlim(0, longest_s * 1.42)
        axes.set_ylim(len(facts.policies) - 0.4, -0.6)
        axes.set_yticks(range(len(facts.policies)), [policy_label(run.policy) for run in runs.runs])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x")
        axes.set_xlabel("mean time of an RL step (s)")
        used = dict.fromkeys(part.phase for policy in facts.policies for part in policy.time.phases)
        patches = [
            Patch(facecolor=_colour(phase), label=text) for phase, text in PHASES.items() if phase in used
        ]
        legend_below(figure, patches, most=4)
        return _time_title(runs, facts)

    title, image = draw(build, 0.5 * len(facts.policies) + 1.9, basis_of(runs.runs))
    caption = (
        f"The mean over {facts.steps} RL steps, in the phases of a step. Beside each bar: seconds, and the "
        "speedup over the first policy, both with their 95 % intervals over steps."
    )
    return Picture("train_step_time", title, caption, image)


def _colour(phase: str) -> str:
    return PHASE_COLOURS.get(phase) or CAUSE_COLOURS[phase]


def _bar(axes: Axes, row: int, policy: PolicyFacts, longest_s: float) -> None:
    left = 0.0
    for part in policy.time.phases:
        width = part.seconds.value
        axes.barh(row, width, left=left, height=0.74, color=_colour(part.phase), linewidth=0)
        if width >= _LABEL_FROM * longest_s:
            dark = part.phase in ("policy_update", "drafter_publish")
            axes.text(left + width / 2, row, number(width), ha="center", va="center", fontsize=8,
                      color=PAPER if dark else INK)  # fmt: skip
        left += width
    words = f"{number(policy.time.step_s.value)} s"
    if policy.time.step_s.interval is not None:
        low, high = policy.time.step_s.interval
        words += f" [{number(low)}, {number(high)}]"
    if policy.amdahl is not None:
        words += f"\n{policy.time.step_speedup.value:.2f}x"
        if policy.time.step_speedup.interval is not None:
            low, high = policy.time.step_speedup.interval
            words += f" [{low:.2f}, {high:.2f}]"
    axes.text(left + GAP_SHARE * longest_s, row, words, va="center", fontsize=8.5)


def _time_title(runs: TrainSet, facts: TrainFacts) -> str:
    baseline = facts.policies[0].time
    words = (
        f"A step takes {number(baseline.step_s.value)} s under {policy_label(runs.runs[0].policy)}, "
        f"{baseline.rollout_s.value / baseline.step_s.value:.0%} of it rollout"
    )
    fastest = min(range(len(facts.policies)), key=lambda index: facts.policies[index].time.step_s.value)
    if fastest == 0:
        return words
    time = facts.policies[fastest].time
    return (
        f"{words}, and {number(time.step_s.value)} s under {policy_label(runs.runs[fastest].policy)}: "
        f"{time.step_speedup.value:.2f}x end to end, {time.rollout_speedup.value:.2f}x in the rollout"
    )


def draw_amdahl(runs: TrainSet, facts: TrainFacts) -> Picture:
    """Draw what a rollout's speedup can bring end to end, and what was measured."""
    found = [
        (index, policy.amdahl) for index, policy in enumerate(facts.policies) if policy.amdahl is not None
    ]
    share = found[0][1].rollout_share

    def build(figure: SubFigure) -> str:
        axes = figure.subplots()
        spans = [(_reach(each.rollout_speedup), _reach(each.measured)) for _, each in found]
        left = 0.95 * min(1.0, *(across[0] for across, _ in spans))
        right = 1.2 * max(2.0, *(across[1] for across, _ in spans))
        x = np.linspace(left, right, 200)
        axes.plot(x, x, color="#888888", linewidth=1, linestyle=":", zorder=1)
        axes.plot(x, amdahl(np.full_like(x, share.value), x), color="#444444", zorder=2)
        if share.interval is not None:
            below, above = (amdahl(np.full_like(x, bound), x) for bound in share.interval)
            axes.fill_between(x, below, above, color=BAND, zorder=0)
        for index, each in found:
            _point(axes, each, policy_style(index)["color"])
        top = max(float(amdahl(np.array(share.value), np.array(right))), *(up[1] for _, up in spans))
        low = 0.95 * min(1.0, *(up[0] for _, up in spans))
        axes.set(xlim=(left, right), ylim=(low, top * 1.08))
        axes.set_xlabel(f"speedup of the rollout over {policy_label(runs.runs[0].policy)}")
        axes.set_ylabel("speedup of the whole RL step")
        axes.grid()
        words = f"line: Amdahl's law, {share.value:.0%} of the baseline's step is rollout"
        ceiling = found[0][1].ceiling.value
        words += "" if np.isnan(ceiling) else f"\nno rollout brings more than {ceiling:.2f}x"
        axes.annotate(words, (0.99, 0.03), xycoords="axes fraction", ha="right", va="bottom", fontsize=8.5,
                      color="#444444")  # fmt: skip
        handles = [axes.plot([], [], "o", color=policy_style(index)["color"])[0] for index, _ in found]
        legend_below(figure, handles, [policy_label(runs.runs[index].policy) for index, _ in found], most=4)
        return _amdahl_title(runs, found)

    title, image = draw(build, 4.6, basis_of(runs.runs))
    caption = (
        f"The line is Amdahl's law for a rollout that takes {share.value:.1%} of the baseline's step, the "
        "band its 95 % interval over steps; the dotted line would be a step that is all rollout. Points are "
        "measured, with 95 % intervals. A point above the line: other phases got shorter too, as when "
        "log-probabilities are taken on idle workers; below it: training, waiting or publishing cost time."
    )
    return Picture("train_amdahl", title, caption, image)


def _reach(estimate: Estimate) -> tuple[float, float]:
    """Return the interval, or twice the value without one."""
    return estimate.interval or (estimate.value, estimate.value)


def _point(axes: Axes, each: AmdahlFacts, colour: str) -> None:
    x, y = each.rollout_speedup, each.measured
    if x.interval is not None and y.interval is not None:
        axes.plot(x.interval, [y.value, y.value], color=colour, linewidth=1.3, zorder=3)
        axes.plot([x.value, x.value], y.interval, color=colour, linewidth=1.3, zorder=3)
    axes.plot([x.value], [y.value], "o", color=colour, markersize=6, markeredgecolor="white", zorder=4)


def _amdahl_title(runs: TrainSet, found: list[tuple[int, AmdahlFacts]]) -> str:
    index, best = max(found, key=lambda pair: pair[1].measured.value)
    return (
        f"{policy_label(runs.runs[index].policy)}: a rollout {best.rollout_speedup.value:.2f}x as fast gives "
        f"{best.measured.value:.2f}x end to end where Amdahl's law gives {best.predicted.value:.2f}x"
    )


def draw_train_lengths(runs: TrainSet, facts: TrainFacts) -> Picture:
    """Draw the distribution of response lengths of each policy, and longest and median by step."""

    def build(figure: SubFigure) -> str:
        left, right = figure.subplots(1, 2)
        for index, run in enumerate(runs.policies):
            _cdf(left, run, index)
            longest, middle = longest_and_median(run)
            steps = run.run.steps["step"].to_numpy()
            marker = "o" if len(steps) <= 40 else ""
            right.plot(steps, longest, marker=marker, **policy_style(index))
            right.plot(steps, middle, marker=marker, markerfacecolor="white", linewidth=1.0,
                       **policy_style(index))  # fmt: skip
        _dress_lengths(left, right)
        policy_legend(figure, [run.policy for run in runs.runs])
        return _lengths_title(runs, facts)

    title, image = draw(build, 3.9, basis_of(runs.runs))
    caption = (
        "Left: how many responses are at most so long, all steps. Right: the longest response of each step "
        "(filled dots), which ends its rollout, and the median (open dots)."
    )
    return Picture("train_lengths", title, caption, image)


def _cdf(axes: Axes, run: TrainRun, index: int) -> None:
    lengths = np.sort(run.run.responses["response_tokens"].to_numpy(np.float64))
    shares = np.arange(len(lengths) + 1) / len(lengths)
    heights = np.quantile(np.maximum(lengths, 1.0), shares, method="inverted_cdf")
    axes.plot(heights, 100 * shares, drawstyle="steps-post", **policy_style(index))


def _dress_lengths(left: Axes, right: Axes) -> None:
    left.set_xscale("log")
    left.margins(x=0.03)
    left.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    left.xaxis.set_minor_formatter(NullFormatter())
    left.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    left.tick_params(axis="x", labelrotation=45)
    left.set_ylim(0, 103)
    left.set_xlabel("response length (tokens, log scale)")
    left.set_ylabel("responses up to this length (%)")
    left.grid()
    right.set_xlabel("RL step")
    right.set_ylabel("response length (tokens)")
    right.set_ylim(0, None)
    right.margins(x=0.03)
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    right.grid()


def _lengths_title(runs: TrainSet, facts: TrainFacts) -> str:
    first = facts.policies[0].lengths
    words = (
        f"The longest response of a step is {first.longest_over_median_in_step.value:.1f} times the "
        f"median under {policy_label(runs.runs[0].policy)}"
    )
    others = [policy for policy in facts.policies[1:] if policy.lengths.mean_ratio is not None]
    if not others:
        return words
    if all(policy.lengths.same_as_baseline for policy in others):
        return f"{words}; all policies have the same lengths"
    ratios = {policy.policy: policy.lengths.mean_ratio for policy in others}
    policy, ratio = max(
        ((policy, ratio) for policy, ratio in ratios.items() if ratio is not None),
        key=lambda pair: abs(pair[1].value - 1),
    )
    return f"{words}; under {policy} responses are {change(ratio, 'shorter', 'longer')}"
