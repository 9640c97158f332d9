"""The inner loops of tltsched.policies.estimators.requests, over columns: there stands the law.

Columns are arrays of the standard library, an entry a request of a decision interval: `at` is the row of what
is known of it, `steps` its engine steps with drafts, `accepted` how many drafts these accepted. A row of what
is known has four numbers: estimate, variance of it, w, sum of w y. A driver may compile these functions as
they are.
"""

from __future__ import annotations

from array import array
from math import exp

NEW, GONE = -1, -2  # in place of a row: nothing is known of the request; it is done
ROW = 4  # numbers
MOST_SCORINGS = 2  # a second one where the first moves the estimate by more than a cell
CELL = 0.25  # width in x of the cells in which m and v are worked out once; m is linear inside a cell
LARGEST = 3.0  # x beyond it is cut: acceptance is none or all there
MIDDLE = 12  # of the cells from -LARGEST to LARGEST
CELLS = 25


def weigh(at: array[int], steps: array[int], known: array[float]) -> tuple[float, float, int, int]:
    """Return sums of estimates and second moments by engine steps, and engine steps of known and new ones."""
    first = second = 0.0
    known_steps = new_steps = 0
    for i in range(len(at)):
        row = at[i] * ROW
        if row < 0:
            new_steps += steps[i]
            continue
        estimate = known[row]
        known_steps += steps[i]
        first += steps[i] * estimate
        second += steps[i] * (estimate * estimate + known[row + 1])
    return first, second, known_steps, new_steps


def normal_of(
    first: float, second: float, known: int, new: int, prior_variance: float
) -> tuple[float, float]:
    """Return mean and variance of sums over `known`, and of `new` more of the population."""
    new = max(new, 0)
    count = known + new
    if not count:
        return 0.0, prior_variance
    middle = first / count
    return middle, (second + new * prior_variance) / count - middle * middle


def learn(
    at: array[int],
    steps: array[int],
    accepted: array[int],
    known: array[float],
    after: array[float],
    hazards: array[float],
    memory_steps: float,
    prior_variance: float,
) -> tuple[float, float]:
    """Take in what requests got accepted under median hazards by position, [depth].

    Writes what is known now of those that are not GONE into `after`, in their order. Returns the sums of
    their estimates and of the second moments of these.
    """
    prior, cells, seen = 1.0 / prior_variance, [0.0] * (ROW * CELLS), [False] * CELLS
    faded, keep = 0, 1.0
    first = second = 0.0
    to = 0
    for i in range(len(at)):
        row = at[i] * ROW
        if at[i] == GONE:
            continue
        x, variance, worth, total = 0.0, prior_variance, 0.0, 0.0
        if row >= 0:
            x, variance, worth, total = known[row], known[row + 1], known[row + 2], known[row + 3]
        if steps[i]:
            if steps[i] != faded:
                faded = steps[i]
                keep = exp(-faded / memory_steps)
            mean_accepted = accepted[i] / steps[i]
            worth *= keep
            total *= keep
            gain = gained = 0.0
            for _ in range(MOST_SCORINGS):
                cell = MIDDLE + round(x / CELL)
                if not seen[cell]:
                    seen[cell] = True
                    fill_cell(cell, hazards, cells)
                centre, mean = cells[ROW * cell], cells[ROW * cell + 1]
                over_slope, information = cells[ROW * cell + 2], cells[ROW * cell + 3]
                own = centre + (mean_accepted - mean) * over_slope
                if not -LARGEST <= own <= LARGEST:
                    own = LARGEST if own > 0 else -LARGEST
                gain = steps[i] * information
                gained = gain * own
                variance = 1.0 / (worth + gain + prior)
                from_x, x = x, (total + gained) * variance
                if -CELL <= x - from_x <= CELL:
                    break
            worth += gain
            total += gained
        after[to], after[to + 1], after[to + 2], after[to + 3] = x, variance, worth, total
        to += ROW
        first += x
        second += x * x + variance
    return first, second


def fill_cell(cell: int, hazards: array[float], cells: list[float]) -> None:
    """Write the centre of a cell of x, and m, 1 / m' and the information of an engine step there."""
    centre = (cell - MIDDLE) * CELL
    exponent = exp(centre)
    mean = slope = second = 0.0
    for position in range(len(hazards)):
        raised = hazards[position] * exponent
        survival = exp(-raised)
        mean += survival
        slope -= raised * survival
        second += (2 * position + 1) * survival  # E[A^2] = sum (2 j - 1) P(A >= j)
    variance = second - mean * mean
    over_slope = information = 0.0
    if variance > 1e-9 and slope < -1e-9:
        over_slope, information = 1.0 / slope, slope * slope / variance
    else:
        centre = 0.0  # all or nothing is accepted: it tells no requests apart
    at = ROW * cell
    cells[at], cells[at + 1], cells[at + 2], cells[at + 3] = centre, mean, over_slope, information
