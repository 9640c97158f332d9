"""The simulator from Python: lengths in, typed answers out, with the same figures as the commands."""

from __future__ import annotations

from tlt.api.lengths import Lengths, load
from tlt.api.results import Comparison, Recommendation, Run
from tlt.api.studies import compare, recommend, simulate

__all__ = ["Comparison", "Lengths", "Recommendation", "Run", "compare", "load", "recommend", "simulate"]
