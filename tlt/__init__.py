"""Long-tail rollouts: what they leave idle, and the speculation policy that uses it.

From Python:

    import tlt

    lengths = tlt.load("lengths.csv")
    answer = tlt.compare(lengths, ["none", "static:4", "goodput"], config="job.toml")
    answer.to_pandas()

`load`, `simulate`, `compare` and `recommend` are described in tlt.api; they are imported when they are used,
so that `import tlt` and `tlt --help` stay quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tlt.api import Comparison, Lengths, Recommendation, Run, compare, load, recommend, simulate

__all__ = ["Comparison", "Lengths", "Recommendation", "Run", "compare", "load", "recommend", "simulate"]


def __getattr__(name: str) -> object:
    """Import a name of the API on first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tlt import api

    return getattr(api, name)


def __dir__() -> list[str]:
    """Return the names of the API, for completion in a notebook."""
    return sorted({*globals(), *__all__})
