"""What the keys of metrics mean: a framework a module, one line here each."""

from __future__ import annotations

from tlt.traces.importers.meaning import (
    areal,
    nemo_rl,
    openrlhf,
    prime_rl,
    roll,
    skyrl,
    slime,
    trl,
    verl,
)
from tlt.traces.importers.meaning.key import Framework

FRAMEWORKS: dict[str, Framework] = {
    one.name: one
    for one in (
        verl.FRAMEWORK,
        nemo_rl.FRAMEWORK,
        slime.FRAMEWORK,
        skyrl.FRAMEWORK,
        openrlhf.FRAMEWORK,
        roll.FRAMEWORK,
        areal.FRAMEWORK,
        prime_rl.FRAMEWORK,
        trl.FRAMEWORK,
    )
}


def framework_of(values: dict[str, float]) -> Framework | None:
    """Return the framework whose keys the metrics of a step have, if any."""
    return next((one for one in FRAMEWORKS.values() if one.claims(values)), None)


KNOWN = frozenset(name for one in FRAMEWORKS.values() for key in one.keys for name in key.names)


def in_seconds(values: dict[str, float]) -> dict[str, float]:
    """Return the metrics of a step, with seconds under the known name where a name says milliseconds."""
    found = {}
    for name, value in values.items():
        known = name.replace("timing_ms/", "timing_s/").removesuffix("_ms")
        if known != name and known in KNOWN:
            found[known] = value / 1000.0
    return values | found
