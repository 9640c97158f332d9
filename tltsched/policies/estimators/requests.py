"""What is known of the acceptance of each request that runs: its own history, shrunk to the population.

Law: the log-exponent x of a request is normal around 0 with standard deviation `spread`, and m(x), v(x) are
mean and variance of the drafts that it gets accepted in an engine step, from the hazards h of the median
request: survivals exp(-h exp(x)). After n engine steps with A accepted drafts in all, a step of Fisher
scoring from the estimate so far gives the history's own x and what it is worth,
    y = x + (A / n - m(x)) / m'(x),    w = n m'(x)^2 / v(x),
so that the estimate is the mean of all y so far by their w, shrunk by w / (w + 1 / spread^2), with variance
1 / (w + 1 / spread^2). The w fade over `memory_steps` engine steps of the request, since acceptance moves
inside a response. That is three numbers a request, however long it runs.
"""

from __future__ import annotations

from collections.abc import Container
from math import exp

from tltsched.events import DraftsByRequest
from tltsched.policies.estimators.exponents import Exponents

MOST_SCORINGS = 2  # a second one where the first moves the estimate by more than a cell
CELL = 0.25  # width in x of the cells in which m and v are worked out once; m is linear inside a cell
LARGEST = 3.0  # x beyond it is cut: acceptance is none or all there


class RequestEstimates:
    """The log-exponent of each request that ran in the last decision interval with drafts and goes on."""

    def __init__(self, spread: float, memory_steps: float) -> None:
        self._prior_variance = spread * spread
        self._memory_steps = memory_steps
        # (estimate, variance of it, w, sum of w y) of each request
        self._known: dict[int, tuple[float, float, float, float]] = {}
        self._left: dict[int, tuple[float, float, float, float]] = {}  # done since the last observation

    def __len__(self) -> int:
        return len(self._known)

    def clear(self) -> None:
        """Forget all requests."""
        self._known.clear()
        self._left.clear()

    def drop(self, finished: tuple[int, ...]) -> None:
        """Take out requests that are done; they are forgotten with the next observation."""
        for request in finished:
            if request in self._known:
                self._left[request] = self._known.pop(request)

    def estimate(self, request: int) -> tuple[float, float]:
        """Return the log-exponent of a request and the variance of the estimate."""
        known = self._known.get(request)
        return known[:2] if known else (0.0, self._prior_variance)

    def batch(self, requests: int) -> Exponents:
        """Return the log-exponents of a batch; what is not known of is as the population."""
        first = second = 0.0
        for estimate, variance, _, _ in self._known.values():
            first += estimate
            second += estimate * estimate + variance
        return self._normal(first, second, len(self._known), requests - len(self._known))

    def before(self, drafts: DraftsByRequest) -> Exponents:
        """Return the log-exponents of what ran, as they were known before, weighted by engine steps."""
        first = second = 0.0
        known_steps = new_steps = 0
        for request, steps, _ in drafts:
            known = self._known.get(request) or self._left.get(request)
            if known is None:
                new_steps += steps
                continue
            estimate, variance = known[:2]
            known_steps += steps
            first += steps * estimate
            second += steps * (estimate * estimate + variance)
        return self._normal(first, second, known_steps, new_steps)

    def observe(self, drafts: DraftsByRequest, finished: Container[int], hazards: list[float]) -> None:
        """Take in what requests got accepted under median hazards by position; keep those that go on."""
        prior, cells = 1.0 / self._prior_variance, _Cells(hazards)
        fading: dict[int, float] = {0: 1.0}
        before, after = self._known, {}
        for request, steps, accepted in drafts:
            if request in finished:
                continue
            x, variance, worth, total = before.get(request) or (0.0, self._prior_variance, 0.0, 0.0)
            if steps:
                keep = fading.get(steps)
                if keep is None:
                    keep = fading[steps] = exp(-steps / self._memory_steps)
                worth *= keep
                total *= keep
                for _ in range(MOST_SCORINGS):
                    from_x = x
                    own, information = cells.score(from_x, accepted / steps)
                    gain = steps * information
                    variance = 1.0 / (worth + gain + prior)
                    x = (total + gain * own) * variance
                    if abs(x - from_x) <= CELL:
                        break
                worth += gain
                total += gain * own
            after[request] = (x, variance, worth, total)
        self._known, self._left = after, {}

    def _normal(self, first: float, second: float, known: int, new: int) -> Exponents:
        """Return mean and variance of sums over `known`, and of `new` more of the population."""
        count = known + max(new, 0)
        if not count:
            return Exponents(0.0, self._prior_variance)
        mean = first / count
        second += max(new, 0) * self._prior_variance
        return Exponents(mean, second / count - mean * mean)


class _Cells:
    """m(x), m'(x) and the information of an engine step, worked out once a cell of x."""

    def __init__(self, hazards: list[float]) -> None:
        self._hazards = hazards
        self._known: dict[int, tuple[float, float, float]] = {}

    def score(self, x: float, mean_accepted: float) -> tuple[float, float]:
        """Return the log-exponent that a history alone tells of, seen from x, and what a step is worth."""
        index = round(x / CELL)
        cell = self._known.get(index)
        if cell is None:
            cell = self._known[index] = _cell(self._hazards, index * CELL)
        mean, slope, information = cell
        if not information:
            return 0.0, 0.0
        own = index * CELL + (mean_accepted - mean) / slope
        return min(max(own, -LARGEST), LARGEST), information


def _cell(hazards: list[float], x: float) -> tuple[float, float, float]:
    """Return m, m' and the information m'^2 / v of an engine step, at log-exponent x."""
    exponent = exp(x)
    mean = slope = second = 0.0
    for position, hazard in enumerate(hazards):
        raised = hazard * exponent
        survival = exp(-raised)
        mean += survival
        slope -= raised * survival
        second += (2 * position + 1) * survival  # E[A^2] = sum (2 j - 1) P(A >= j)
    variance = second - mean * mean
    if not (variance > 1e-9 and slope < -1e-9):
        return mean, slope, 0.0  # all or nothing is accepted: nothing to tell requests apart by
    return mean, slope, slope * slope / variance
