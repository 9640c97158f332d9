"""What of a run was never held against a live engine, or was and missed: the regimes of docs/regimes.md.

A run inside says nothing, unless a live engine came out far from such runs. `evidence.regimes_page` writes
the page from the records; a regime counts as held here only if a record there says so
(tests/evidence/test_regimes_page.py).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tlt.sim.model.cluster import Cluster
from tlt.sim.simulation import Simulation, drafts_trees
from tltsched.schedules import schedule_name
from tltsched.schedules.synchronous import SynchronousConfig

MOST_HELD_TP = 2  # queues of a 7B shape over two H200
OFF_AT_TP_2 = 0.34  # their rollouts, at most, by the roofline or by a calibration (record two_gpus_replay)
LONGEST_HELD_TOKENS = 30_483  # prompt and response, in the regime of long contexts on one H200


class Regime(msgspec.Struct, frozen=True):
    """A kind of run. `words` tells how a run is of it; "" if it is not."""

    name: str
    held: bool
    words: Callable[[Simulation, Cluster], str]


def _tp(simulation: Simulation, cluster: Cluster) -> str:
    del cluster
    tp = simulation.config.hardware.tp
    return f"TP {tp}" if tp > MOST_HELD_TP else ""


def _trees(simulation: Simulation, cluster: Cluster) -> str:
    del cluster
    return "drafts in trees" if simulation.drafts and drafts_trees(simulation.config) else ""


def _history(simulation: Simulation, cluster: Cluster) -> str:
    del cluster
    return "drafts out of history" if simulation.config.drafter.kind == "history" else ""


def _schedule(simulation: Simulation, cluster: Cluster) -> str:
    del simulation
    plain = isinstance(cluster.spec, SynchronousConfig) and not cluster.knows_lengths
    return "" if plain else f"the schedule {schedule_name(cluster.spec)}"


def _contexts(simulation: Simulation, cluster: Cluster) -> str:
    del cluster
    rows = simulation.trace.rows
    longest = int((rows["prompt_tokens"] + rows["response_tokens"]).max()) if len(rows) else 0
    return f"contexts of {longest:,} tokens" if longest > LONGEST_HELD_TOKENS * 1.01 else ""


def _preempted(simulation: Simulation, cluster: Cluster) -> str:
    del simulation
    return "a KV cache that overflows" if cluster.log.preemptions else ""


def _experts(simulation: Simulation, cluster: Cluster) -> str:
    del cluster
    return "a mixture of experts" if simulation.shape.experts else ""


def _quantised(simulation: Simulation, cluster: Cluster) -> str:
    del cluster
    shape = simulation.shape
    weights = {part.weights for part in shape.parts()}
    return "weights or a KV cache below 16 bits" if len(weights) > 1 or shape.kv_bits < 16.0 else ""


REGIMES = (
    Regime("tensor parallelism", False, _tp),
    Regime("trees", False, _trees),
    Regime("drafts out of history", False, _history),
    Regime("other schedules than the synchronous one", False, _schedule),
    Regime("long contexts", False, _contexts),
    Regime("a small KV cache", True, _preempted),
    Regime("mixtures of experts", False, _experts),
    Regime("quantised weights", False, _quantised),
)


def never_held(simulation: Simulation, cluster: Cluster) -> tuple[str, ...]:
    """Return in words what of a run no live engine was held against; none if the run lies inside."""
    told = [regime.words(simulation, cluster) for regime in REGIMES if not regime.held]
    return tuple(words for words in told if words)


def held_badly(simulation: Simulation) -> tuple[str, ...]:
    """Return in words where a live engine was held against runs of the kind, and they were far off."""
    if simulation.config.hardware.tp != MOST_HELD_TP:
        return ()
    return (
        f"at TP {MOST_HELD_TP} rollouts of a live engine were up to {OFF_AT_TP_2:.0%} off what is simulated, "
        "and the best policy was another one in some of them",
    )
