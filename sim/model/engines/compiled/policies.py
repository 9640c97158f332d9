"""Functions of policies in compiled code: their own source, compiled as it stands."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from tlt.sim.model.engines.compiled.cache import compiled
from tltsched.policies.base import Policy
from tltsched.policies.estimators import exponents
from tltsched.policies.estimators.exponents import Arithmetic
from tltsched.policies.estimators.running import RunningAcceptance

INNER = ("accepted_in_a_row", "mean")  # called by those of Arithmetic, and so compiled before


def _arithmetic() -> Arithmetic:
    """Return the functions of `exponents`, each compiled over the compiled ones that it calls."""
    names: dict[str, Any] = dict(vars(exponents))
    for name in dict.fromkeys((*INNER, *Arithmetic._fields)):
        plain = names[name]
        names[name] = compiled(FunctionType(plain.__code__, names, name, plain.__defaults__))
    return Arithmetic(*(names[name] for name in Arithmetic._fields))


ARITHMETIC = _arithmetic()


def quicken(policy: Policy) -> None:
    """Let a policy estimate with compiled functions, if it estimates from requests."""
    acceptance = getattr(policy, "acceptance", None)
    if isinstance(acceptance, RunningAcceptance):
        acceptance.arithmetic = ARITHMETIC
