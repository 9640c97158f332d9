"""What estimates are worked out with: functions of numbers and of columns of them, plain or compiled.

`Arithmetic` names those that estimators call. A driver may hand them the same functions, compiled from their
source as it stands.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import NamedTuple

from tltsched.policies.estimators.exponents import (
    hazard_of,
    hazard_of_accepted,
    mean_accepted,
    mean_survival,
    tokens_of_chains,
    tokens_of_trees,
)
from tltsched.policies.estimators.histories import learn, weigh


class Arithmetic(NamedTuple):
    """The functions of these names."""

    hazard_of: Callable[[float, tuple[float, ...], float], float]
    mean_survival: Callable[[float, tuple[float, ...]], float]
    hazard_of_accepted: Callable[[float, int, tuple[float, ...], float], float]
    mean_accepted: Callable[[float, int, tuple[float, ...]], float]
    tokens_of_trees: Callable[[array[float], array[int], tuple[float, ...], array[float]], None]
    tokens_of_chains: Callable[[array[float], tuple[float, ...], array[float]], None]
    weigh: Callable[[array[int], array[int], array[float]], tuple[float, float, int, int]]
    learn: Callable[..., tuple[float, float]]


PLAIN = Arithmetic(
    hazard_of,
    mean_survival,
    hazard_of_accepted,
    mean_accepted,
    tokens_of_trees,
    tokens_of_chains,
    weigh,
    learn,
)
