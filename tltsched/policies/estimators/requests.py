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
        self._first = self._second = 0.0  # moments of those known, summed up

    def __len__(self) -> int:
        return len(self._known)

    def clear(self) -> None:
        """Forget all requests."""
        self._known.clear()
        self._left.clear()
        self._first = self._second = 0.0

    def drop(self, finished: tuple[int, ...]) -> None:
        """Take out requests that are done; they are forgotten with the next observation."""
        for request in finished:
            if request in self._known:
                self._left[request] = gone = self._known.pop(request)
                self._first -= gone[0]
                self._second -= gone[0] * gone[0] + gone[1]

    def estimate(self, request: int) -> tuple[float, float]:
        """Return the log-exponent of a request and the variance of the estimate."""
        known = self._known.get(request)
        return known[:2] if known else (0.0, self._prior_variance)

    def batch(self, requests: int) -> Exponents:
        """Return the log-exponents of a batch; what is not known of is as the population."""
        return self._normal(self._first, self._second, len(self._known), requests - len(self._known))

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
        prior, unknown = 1.0 / self._prior_variance, (0.0, self._prior_variance, 0.0, 0.0)
        cells, fading = _Cells(hazards), _Fading(self._memory_steps)
        before, after = self._known, {}
        first = second = 0.0
        for request, steps, accepted in drafts:
            if request in finished:
                continue
            x, variance, worth, total = before.get(request, unknown)
            if steps:
                keep, mean_accepted = fading[steps], accepted / steps
                worth *= keep
                total *= keep
                gain = gained = 0.0
                for _ in range(MOST_SCORINGS):
                    centre, mean, over_slope, information = cells[round(x / CELL)]
                    own = centre + (mean_accepted - mean) * over_slope
                    if not -LARGEST <= own <= LARGEST:
                        own = LARGEST if own > 0 else -LARGEST
                    gain = steps * information
                    gained = gain * own
                    variance = 1.0 / (worth + gain + prior)
                    from_x, x = x, (total + gained) * variance
                    if -CELL <= x - from_x <= CELL:
                        break
                worth += gain
                total += gained
            after[request] = (x, variance, worth, total)
            first += x
            second += x * x + variance
        self._known, self._left = after, {}
        self._first, self._second = first, second

    def _normal(self, first: float, second: float, known: int, new: int) -> Exponents:
        """Return mean and variance of sums over `known`, and of `new` more of the population."""
        count = known + max(new, 0)
        if not count:
            return Exponents(0.0, self._prior_variance)
        mean = first / count
        second += max(new, 0) * self._prior_variance
        return Exponents(mean, second / count - mean * mean)


class _Fading(dict[int, float]):
    """What is left of a history after so many engine steps, worked out once each."""

    def __init__(self, memory_steps: float) -> None:
        super().__init__()
        self._memory_steps = memory_steps

    def __missing__(self, steps: int) -> float:
        left = self[steps] = exp(-steps / self._memory_steps)
        return left


class _Cells(dict[int, tuple[float, float, float, float]]):
    """Centre of a cell of x, and m, 1 / m' and the information of an engine step there, worked out once."""

    def __init__(self, hazards: list[float]) -> None:
        super().__init__()
        self._hazards = hazards

    def __missing__(self, index: int) -> tuple[float, float, float, float]:
        centre = index * CELL
        exponent = exp(centre)
        mean = slope = second = 0.0
        for position, hazard in enumerate(self._hazards):
            raised = hazard * exponent
            survival = exp(-raised)
            mean += survival
            slope -= raised * survival
            second += (2 * position + 1) * survival  # E[A^2] = sum (2 j - 1) P(A >= j)
        variance = second - mean * mean
        if variance > 1e-9 and slope < -1e-9:
            cell = (centre, mean, 1.0 / slope, slope * slope / variance)
        else:
            cell = (0.0, mean, 0.0, 0.0)  # all or nothing is accepted: it tells no requests apart
        self[index] = cell
        return cell
