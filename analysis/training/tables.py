"""The tables of a training comparison: a row a figure, a column a policy; the short one of the terminal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from rich.table import Table
from rich.text import Text

from tlt.analysis.comparison.pace import PaceFacts
from tlt.analysis.drawing.estimates import estimate_text, number, percent, signed, times
from tlt.analysis.drawing.tables import Cells, TextTable, terminal_table
from tlt.analysis.training.facts import PolicyFacts, WaitFacts
from tlt.analysis.training.figures import TrainFacts
from tlt.analysis.training.time import PHASES
from tlt.traces.common.intervals import Estimate
from tltsched.written.policy_name import folded

_TERMINAL = ("Policy", "Step\n(s)", "Speedup\n(95 %)", "Rollout\nspeedup", "Idle", "Idle\nused", "Wait\n(ms)",
             "Accept.\nlength\n(bonus)", "Reward\n(last)")  # fmt: skip
_POLICY_COLUMNS = 12  # characters of a policy's name that fit the terminal's table beside its figures


def headers(facts: TrainFacts) -> tuple[str, ...]:
    """Return the headers of every table with a column a policy."""
    return ("Figure", *(policy.policy for policy in facts.policies))


def _reward(value: float) -> str:
    return f"{value:.3f}"


def _row(facts: TrainFacts, label: str, cell: Callable[[PolicyFacts], str]) -> tuple[str, ...]:
    return (label, *(cell(policy) for policy in facts.policies))


def _pair_row(
    facts: TrainFacts, label: str, pair_s: Callable[[WaitFacts], tuple[float | None, float | None]]
) -> tuple[str, ...]:
    """Return a row of medians and maxima over steps, in milliseconds."""
    cells = []
    for policy in facts.policies:
        shown = [number(None if seconds is None else 1000 * seconds) for seconds in pair_s(policy.wait)]
        cells.append(" / ".join(dict.fromkeys(shown)) if "-" in shown else " / ".join(shown))
    return (f"{label}, median / longest (ms)", *cells)


def time_cells(facts: TrainFacts) -> Cells:
    """Return times, speedups and token rates."""
    return [
        _row(facts, "RL steps", lambda policy: f"{policy.steps:,}"),
        _row(facts, "step (s)", lambda policy: estimate_text(policy.time.step_s)),
        _row(facts, "rollout (s a step)", lambda policy: estimate_text(policy.time.rollout_s)),
        _row(facts, "speedup end to end", lambda policy: estimate_text(policy.time.step_speedup, times)),
        _row(
            facts, "speedup of the rollout", lambda policy: estimate_text(policy.time.rollout_speedup, times)
        ),
        _row(
            facts, "rollout tokens a second, over the baseline's",
            lambda policy: estimate_text(policy.time.token_speedup, times),
        ),
        *_equal_lengths_cells(facts),
        *_pace_cells(facts),
        _row(facts, "response tokens/s", lambda policy: estimate_text(policy.time.tokens_per_s)),
        _row(
            facts, "response tokens/s of the rollout",
            lambda policy: estimate_text(policy.time.rollout_tokens_per_s),
        ),
    ]  # fmt: skip


def _equal_lengths_cells(facts: TrainFacts) -> Cells:
    """Return speedups without what lengths did, where they differ."""
    found = [policy.time.equal_lengths for policy in facts.policies]
    label = "speedup of a worker's rollout at equal lengths"
    return [(label, *(estimate_text(each, times) for each in found))] if any(found) else []


def _pace_cells(facts: TrainFacts) -> Cells:
    """Return how the machine ran beside the baseline's, and speedups without that."""
    rows: tuple[tuple[str, Callable[[PaceFacts], Estimate]], ...] = (
        ("engine steps of like batch took, over the baseline's", lambda pace: pace.slower),
        ("speedup of the rollout, engine steps at one pace", lambda pace: pace.rollout_speedup),
        ("speedup end to end, engine steps at one pace", lambda pace: pace.step_speedup),
    )
    paces = [policy.time.pace for policy in facts.policies]
    return [
        (label, *(estimate_text(figure(pace) if pace else None, times) for pace in paces))
        for label, figure in rows
        if any(paces)
    ]


def amdahl_cells(facts: TrainFacts) -> Cells:
    """Return what Amdahl's law makes of the rollout's speedup, for all policies but the baseline."""
    rows = []
    for label, name, form in (
        ("baseline's rollout share r", "rollout_share", percent),
        ("rollout speedup s", "rollout_speedup", times),
        ("1 / ((1 - r) + r / s)", "predicted", times),
        ("measured end to end", "measured", times),
        ("measured over predicted", "measured_over_predicted", number),
        ("ceiling 1 / (1 - r)", "ceiling", times),
    ):
        found = (
            estimate_text(getattr(policy.amdahl, name), form) if policy.amdahl else "-"
            for policy in facts.policies
        )
        rows.append((label, *found))
    return rows


def phase_cells(facts: TrainFacts) -> Cells:
    """Return seconds a step and share of the step by phase."""
    rows = []
    for phase, meaning in PHASES.items():
        cells = []
        for policy in facts.policies:
            part = next((part for part in policy.time.phases if part.phase == phase), None)
            cells.append(f"{estimate_text(part.seconds)}, {part.share.value:.1%}" if part else "0")
        if any(cell != "0" for cell in cells):
            rows.append((meaning, *cells))
    return rows


def idle_cells(facts: TrainFacts) -> Cells:
    """Return idle time, what it was used for, and the wait that training added."""

    def loss(policy: PolicyFacts) -> str:
        return f"{number(policy.head.first_loss)} to {number(policy.head.last_loss)}" if policy.head else "-"

    return [
        _row(facts, "idle, of all GPU time", lambda policy: estimate_text(policy.idle.idle_share, percent)),
        _row(
            facts,
            "used, of the otherwise idle",
            lambda policy: estimate_text(policy.idle.used_share, percent)
        ),
        _row(facts, "drafter training in rollouts (GPU-s)", lambda policy: number(policy.idle.drafter_gpu_s)),
        _row(
            facts, "early log-probabilities (GPU-s)", lambda policy: number(policy.idle.early_logprob_gpu_s)
        ),
        _row(facts, "left idle in rollouts (GPU-s)", lambda policy: number(policy.idle.idle_gpu_s)),
        _row(facts, "responses scored early", lambda policy: percent(policy.idle.scored_early_share)),
        _row(facts, "hand-over (s a step)", lambda policy: estimate_text(policy.wait.handover_s)),
        _row(
            facts, "hand-over, of the step", lambda policy: estimate_text(policy.wait.handover_share, percent)
        ),
        _pair_row(facts, "hand-over", lambda wait: (wait.handover_median_s, wait.handover_max_s)),
        _pair_row(facts, "reading the order to stop", lambda wait: (wait.stop_median_s, wait.stop_max_s)),
        _pair_row(
            facts, "publishing the drafter", lambda wait: (wait.publish_median_s, wait.publish_max_s)
        ),
        _row(
            facts, "drafter tokens trained (a step)",
            lambda policy: number(policy.head.tokens_per_step) if policy.head else "-",
        ),
        _row(facts, "drafter loss, first to last step", loss),
    ]  # fmt: skip


def length_cells(facts: TrainFacts) -> Cells:
    """Return response lengths in tokens, and how far they are from the baseline's."""

    def quantiles(policy: PolicyFacts) -> str:
        lengths = policy.lengths
        return f"{lengths.median:,.0f} / {lengths.p90:,.0f} / {lengths.p99:,.0f} / {lengths.longest:,}"

    return [
        _row(facts, "responses", lambda policy: f"{policy.lengths.responses:,}"),
        _row(facts, "mean", lambda policy: estimate_text(policy.lengths.mean)),
        _row(facts, "median / p90 / p99 / longest", quantiles),
        _row(facts, "longest / median, all steps", lambda policy: number(policy.lengths.longest_over_median)),
        _row(
            facts, "longest / median within a step",
            lambda policy: estimate_text(policy.lengths.longest_over_median_in_step),
        ),
        _row(facts, "truncated", lambda policy: f"{policy.lengths.truncated:,}"),
        _row(
            facts, "mean, over the baseline's", lambda policy: estimate_text(policy.lengths.mean_ratio, times)
        ),
        _row(
            facts, "longest of a step, over the baseline's",
            lambda policy: estimate_text(policy.lengths.longest_ratio, times),
        ),
    ]  # fmt: skip


def reward_cells(facts: TrainFacts) -> Cells:
    """Return rewards and their differences from the baseline's."""
    count = facts.policies[0].rewards.final_steps
    steps = "step" if count == 1 else f"{count} steps"
    return [
        _row(facts, f"first {steps}", lambda policy: estimate_text(policy.rewards.first, _reward)),
        _row(facts, f"last {steps}", lambda policy: estimate_text(policy.rewards.final, _reward)),
        _row(
            facts, f"last {steps}, less the baseline's",
            lambda policy: estimate_text(policy.rewards.final_difference, signed),
        ),
        _row(
            facts, "all steps, less the baseline's",
            lambda policy: estimate_text(policy.rewards.difference, signed),
        ),
    ]  # fmt: skip


def acceptance_cells(facts: TrainFacts) -> Cells:
    """Return acceptance over all steps, by position and by age (tokens, the bonus token counted)."""
    rows: Cells = []
    for label, name, form in (
        ("acceptance length", "length", number),
        ("change a step (trend)", "slope_per_step", signed),
        ("change across an update, same head", "change_same_head", signed),
        ("change across an update, new head", "change_new_head", signed),
        ("served less initial head, temperature 1", "probe_gain_sampled", signed),
        ("served less initial head, greedy", "probe_gain_greedy", signed),
        ("initial head, change a step (temperature 1)", "probe_slope_initial", signed),
    ):
        cells = (
            estimate_text(getattr(policy.acceptance, name), form) if policy.acceptance else "-"
            for policy in facts.policies
        )
        rows.append((label, *cells))
    return [*rows, *_position_cells(facts)]


def _position_cells(facts: TrainFacts) -> Cells:
    shares = [
        {row.position: row.accepted for row in policy.acceptance.by_position} if policy.acceptance else {}
        for policy in facts.policies
    ]
    return [
        (f"accepted at position {at + 1}", *(estimate_text(known.get(at), percent) for known in shares))
        for at in sorted({at for known in shares for at in known})
    ]


def age_cells(facts: TrainFacts) -> Cells:
    """Return the acceptance length at each age of the drafter, with the number of steps it rests on."""
    ages = [
        {row.age_steps: row for row in policy.acceptance.by_age} if policy.acceptance else {}
        for policy in facts.policies
    ]
    return [
        (str(at), *(f"{known[at].length:.3f} ({known[at].steps})" if at in known else "-" for known in ages))
        for at in sorted({at for known in ages for at in known})
    ]


def tables_of(facts: TrainFacts) -> dict[str, TextTable]:
    """Return every table of the page by name."""
    cells = {
        "time": time_cells,
        "phases": phase_cells,
        "amdahl": amdahl_cells,
        "rewards": reward_cells,
        "acceptance": acceptance_cells,
        "idle": idle_cells,
        "lengths": length_cells,
    }
    found = {name: TextTable(headers(facts), rows(facts)) for name, rows in cells.items()}
    return found | {"ages": TextTable(("Age", *headers(facts)[1:]), age_cells(facts))}


def terminal(facts: TrainFacts) -> Table:
    """Return a rich table that fits 80 columns; names are shown as they are, never read as markup."""
    shown = terminal_table(f"{facts.name}: {facts.steps} RL steps")
    for header in _TERMINAL:
        first = header == "Policy"
        shown.add_column(
            Text(header), justify="left" if first else "right", overflow="fold", no_wrap=not first
        )
    for policy in facts.policies:
        name = folded(policy.policy, _POLICY_COLUMNS)
        cells = (
            number(policy.time.step_s.value),
            _two_lines(policy.time.step_speedup),
            _two_lines(policy.time.rollout_speedup),
            percent(policy.idle.idle_share.value),
            "-" if np.isnan(policy.idle.used_share.value) else percent(policy.idle.used_share.value),
            number(1000 * policy.wait.handover_s.value),
            "-" if policy.acceptance is None else f"{policy.acceptance.length.value:.2f}",
            _reward(policy.rewards.final.value),
        )
        shown.add_row(Text(name), *(Text(cell) for cell in cells))
    return shown


def _two_lines(estimate: Estimate) -> str:
    """Return a speedup with its interval below it."""
    if estimate.interval is None or estimate.reason:
        return times(estimate.value)
    low, high = estimate.interval
    return f"{times(estimate.value)}\n{low:.2f}-{high:.2f}"
