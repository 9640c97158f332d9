"""Functions of policies in compiled code: their own source, compiled as it stands."""

from __future__ import annotations

from types import FunctionType, ModuleType
from typing import Any

from tlt.sim.model.engines.compiled.cache import compiled
from tltsched import step_times
from tltsched.policies.base import Policy
from tltsched.policies.estimators import acceptance, exponents, histories
from tltsched.policies.estimators.arithmetic import Arithmetic
from tltsched.policies.estimators.running import RunningAcceptance

# Functions of each module, those that others call first.
FUNCTIONS: dict[ModuleType, tuple[str, ...]] = {
    exponents: (
        "nodes_of", "mean", "accepted_in_a_row", "hazard_of", "mean_survival", "hazard_of_accepted",
        "mean_accepted", "tokens_of_trees", "tokens_of_chains",
    ),
    histories: ("fill_cell", "weigh", "normal_of", "learn"),
    acceptance: ("fade", "rate_at"),
    step_times: ("fixed_of",),
}  # fmt: skip


def _made() -> dict[str, Any]:
    """Return the functions by name, each compiled over the compiled ones that it calls."""
    made: dict[str, Any] = {}
    for module, functions in FUNCTIONS.items():
        names: dict[str, Any] = dict(vars(module))
        for name in functions:
            plain = names[name]
            made[name] = names[name] = compiled(FunctionType(plain.__code__, names, name, plain.__defaults__))
    return made


MADE = _made()
ARITHMETIC = Arithmetic(*(MADE[name] for name in Arithmetic._fields))


def quicken(policy: Policy) -> None:
    """Let a policy estimate with compiled functions, if it estimates from requests."""
    estimate = getattr(policy, "acceptance", None)
    if isinstance(estimate, RunningAcceptance):
        estimate.work_with(ARITHMETIC)
