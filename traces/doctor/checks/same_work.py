"""Did the policies of a comparison do the same work?"""

from __future__ import annotations

import numpy as np
from scipy.stats import t as student

from tlt.traces.common.intervals import TAIL
from tlt.traces.doctor.base import CannotRunError, Check, Limits, Sign
from tlt.traces.doctor.subject import Member, RunTables, Subject
from tlt.traces.lengths.run_as_trace import by_request

MEAN_COUNTS = 0.02  # a smaller difference of the mean length is told, but no problem


def _lengths(member: Member, subject: Subject, limits: Limits) -> list[Sign]:
    """Compare each policy's lengths with the first's: equal, or paired by step where each has its own."""
    del member, limits
    if len(subject.members) < 2:
        raise CannotRunError("one policy")
    runs = [(other.name, other.run) for other in subject.members if other.run is not None]
    signs = []
    for name, run in runs[1:]:
        signs += _against(runs[0][0], runs[0][1], name, run)
    return signs


def _against(base_name: str, base: RunTables, name: str, run: RunTables) -> list[Sign]:
    columns = ("step", "request", "response_tokens")
    if by_request(run.responses, *columns).equals(by_request(base.responses, *columns)):
        return []
    own = (run.rewards is not None and base.rewards is not None) or not (
        run.keeps_order() and base.keeps_order()
    )
    if not own:
        return [
            Sign(
                severity="problem",
                found=f"{name} rolled out other lengths than {base_name}: "
                f"{int(run.responses['response_tokens'].sum()):,} "
                f"response tokens, not {int(base.responses['response_tokens'].sum()):,}",
                why="The policies did different work, so the ratio of their times is no speedup.",
                todo="Run every policy on the same recorded lengths, with the same seed.",
                source=f"responses.parquet of {base_name} and {name}",
            )
        ]
    return _paired(base_name, base, name, run)


def _paired(base_name: str, base: RunTables, name: str, run: RunTables) -> list[Sign]:
    """Student's t interval of the mean difference of log mean lengths, paired by step."""
    means = [each.responses.groupby("step")["response_tokens"].mean() for each in (base, run)]
    longest = [each.responses.groupby("step")["response_tokens"].max() for each in (base, run)]
    differences = (np.log(means[1]) - np.log(means[0])).dropna().to_numpy(np.float64)
    ratio = float(np.exp(differences.mean())) if len(differences) else 1.0
    if len(differences) < 2:
        told, beyond = "from one step, so chance cannot be told", False
    else:
        error = float(differences.std(ddof=1)) / np.sqrt(len(differences))
        half = float(student.ppf(1 - TAIL, len(differences) - 1)) * error
        low, high = np.exp(differences.mean() - half), np.exp(differences.mean() + half)
        beyond = not low <= 1.0 <= high
        told = f"95 % interval {low:.3f} to {high:.3f}, paired over {len(differences)} steps"
    tail = float((longest[1] / longest[0]).dropna().mean())
    return [
        Sign(
            severity="problem" if beyond and abs(ratio - 1) > MEAN_COUNTS else "notice",
            found=f"{name} has lengths of its own: {ratio:.3f} times the mean of {base_name} "
            f"({told}); the longest of a step {tail:.3f} times",
            why="A speedup of times includes the difference, "
            + ("which chance does not explain." if beyond else "which chance explains."),
            todo="Judge by tokens a second, or replay the same lengths in both policies."
            if run.keeps_order() and base.keeps_order()
            else "Judge by seconds per trained token, over so many steps that the rest counts little.",
            source=f"responses.parquet of {base_name} and {name}",
        )
    ]


CHECKS = (
    Check(name="policy-lengths", looks_for="policies with different lengths", examine=_lengths, once=True),
)
