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

from array import array
from collections.abc import Collection, Mapping

from tltsched.events import DraftsByRequest
from tltsched.policies.estimators.arithmetic import PLAIN
from tltsched.policies.estimators.exponents import Exponents
from tltsched.policies.estimators.histories import GONE, NEW, ROW, normal_of

_NUMBER_BYTES = 8
_NOBODY: Mapping[int, int] = {}


class RequestEstimates:
    """The log-exponent of each request that ran in the last decision interval with drafts and goes on."""

    def __init__(self, spread: float, memory_steps: float) -> None:
        self.arithmetic = PLAIN
        """A driver may put the same functions here, compiled."""
        self.prior_variance = spread * spread
        self.memory_steps = memory_steps
        self.rows = array("d")  # of histories: estimate, variance of it, w, sum of w y
        self.known: dict[int, int] = {}  # the row of each request
        self._left: dict[int, int] = {}  # of those that are done since the last observation
        self.order: tuple[int, ...] = ()  # requests of the rows
        self.first = self.second = 0.0  # moments of those known, summed up

    def __len__(self) -> int:
        return len(self.known)

    def clear(self) -> None:
        """Forget all requests."""
        self.known, self._left, self.order = {}, {}, ()
        self.first = self.second = 0.0

    def drop(self, finished: tuple[int, ...]) -> None:
        """Take out requests that are done; they are forgotten with the next observation."""
        for request in finished:
            if request in self.known:
                self._left[request] = self.known.pop(request)
                estimate, variance = self.rows[(at := self._left[request] * ROW) : at + 2]
                self.first -= estimate
                self.second -= estimate * estimate + variance

    def estimate(self, request: int) -> tuple[float, float]:
        """Return the log-exponent of a request and the variance of the estimate."""
        at = self.known.get(request, NEW) * ROW
        return (self.rows[at], self.rows[at + 1]) if at >= 0 else (0.0, self.prior_variance)

    def batch(self, requests: int) -> Exponents:
        """Return the log-exponents of a batch; what is not known of is as the population."""
        return self._normal(self.first, self.second, len(self.known), requests - len(self.known))

    def before(self, drafts: DraftsByRequest) -> Exponents:
        """Return the log-exponents of what ran, as they were known before, weighted by engine steps."""
        if not drafts:
            return Exponents(0.0, self.prior_variance)
        requests, steps, _ = zip(*drafts, strict=True)
        at = self.rows_of(requests, self._left)
        return self._normal(*self.arithmetic.weigh(at, array("q", steps), self.rows))

    def observe(self, drafts: DraftsByRequest, finished: Collection[int], hazards: list[float]) -> None:
        """Take in what requests got accepted under median hazards by position; keep those that go on."""
        requests, steps, accepted = zip(*drafts, strict=True)
        at, after = self.rows_of(requests), array("d", bytes(ROW * _NUMBER_BYTES * len(drafts)))
        if finished:
            for number, request in enumerate(requests):
                if request in finished:
                    at[number] = GONE
            requests = tuple([request for request in requests if request not in finished])
        first, second = self.arithmetic.learn(
            at, array("q", steps), array("q", accepted), self.rows, after, array("d", hazards),
            self.memory_steps, self.prior_variance,
        )  # fmt: skip
        self.know(requests, after, first, second)

    def know(self, requests: tuple[int, ...], rows: array[float], first: float, second: float) -> None:
        """Know these requests alone, of which `rows` are known, with the sums of estimates and moments."""
        if len(self.known) != len(requests) or requests != self.order:
            self.known, self.order = dict(zip(requests, range(len(requests)), strict=True)), requests
        self.rows, self._left, self.first, self.second = rows, {}, first, second

    def rows_of(self, requests: tuple[int, ...], left: Mapping[int, int] = _NOBODY) -> array[int]:
        """Return the rows of requests, NEW of those that are neither known nor among the `left`."""
        if not left and requests == self.order and len(self.known) == len(requests):
            return array("q", range(len(requests)))
        known = {**left, **self.known} if left else self.known
        return array("q", [known.get(request, NEW) for request in requests])

    def _normal(self, first: float, second: float, known: int, new: int) -> Exponents:
        """Return mean and variance of sums over `known`, and of `new` more of the population."""
        return Exponents(*normal_of(first, second, known, new, self.prior_variance))
