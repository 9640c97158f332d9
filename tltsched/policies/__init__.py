"""Speculation policies: a rule a file, their names in `registry`, shared estimates in `estimators`."""

from tltsched.policies.registry import FORMS, POLICIES, PRESETS, PolicySpec, parse_policy

__all__ = ["FORMS", "POLICIES", "PRESETS", "PolicySpec", "parse_policy"]
