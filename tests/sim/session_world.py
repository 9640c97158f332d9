"""Small sessions that tests share, and what a simulation of them leaves."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tests.sim.small_world import PLAIN
from tlt.sim.config import resolve
from tlt.sim.model.cluster import Cluster
from tlt.sim.simulation import Simulation
from tlt.sim.workload import SessionTrace
from tlt.traces.lengths.schema import Origin
from tlt.traces.sessions.build import from_structs
from tlt.traces.sessions.schema import Sessions
from tlt.traces.sessions.turns import Session, Turn
from tltsched.event_log import Record, Recorder, read

# (input, response, wait) of each turn
Rows = tuple[tuple[int, int, float], ...]
WORLD: dict[str, Any] = {
    "hardware": {"gpus": 2, "tp": 1, "model": "Qwen2.5-7B"},
    "cost": {"source": "roofline"},
    "acceptance": {"kind": "geometric", "rate": 0.7},
    "phases": {"reward_s": 1.0, "logprob_s": 0.5, "policy_update_s": 2.0, "weight_sync_s": 0.25},
}


def sessions_of(rows: list[Rows], samples: int = 1, steps: int = 1) -> Sessions:
    """Return sessions, `samples` of a group one behind the other, dealt out evenly over steps."""
    each = len(rows) // steps
    made = [
        Session(
            turns=tuple(
                Turn(input_tokens=new, response_tokens=tokens, wait_s=wait, end="tool")
                for new, tokens, wait in turns
            ),
            step=number // each,
            prompt_id=number // samples,
            sample=number % samples,
        )
        for number, turns in enumerate(rows)
    ]
    return from_structs(made, Origin(source="by hand", kind="generated"))


def drawn_rows(seed: int, count: int, samples: int = 2, most_turns: int = 5) -> list[Rows]:
    """Return sessions of 1 to `most_turns` turns; those of a group have the same prompt."""
    rng = np.random.default_rng(seed)
    rows: list[Rows] = []
    prompt = 0
    for number in range(count):
        if number % samples == 0:
            prompt = int(rng.integers(1, 120))
        turns = int(rng.integers(1, most_turns + 1))
        inputs = [prompt, *rng.integers(0, 60, turns - 1).tolist()]
        tokens = rng.integers(1, 40, turns).tolist()
        waits = rng.exponential(0.3, turns) * (rng.random(turns) < 0.8)
        waits[-1] *= rng.random() < 0.3
        rows.append(tuple(zip(inputs, tokens, waits.tolist(), strict=True)))
    return rows


class SessionRun(NamedTuple):
    """A simulation of sessions, and its record."""

    cluster: Cluster
    records: list[Record]
    lines: list[bytes]
    simulation: Simulation

    def counted(self, field: str) -> int:
        """Return the sum of a count of prefix caches over workers and rollouts."""
        return sum(getattr(pool, field) for worker in self.cluster.workers for pool in worker.pools)

    def booked_s(self, cause: str) -> float:
        """Return the seconds of a cause, summed over workers."""
        total = 0.0
        for worker in self.cluster.workers:
            line = worker.timeline
            for name, begin, end in zip(line.causes, [0.0, *line.ends_s], line.ends_s, strict=False):
                total += (end - begin) * (name == cause)
        return total


def simulate_sessions(
    sessions: Sessions, policy: str = "none", mode: str = "jump", plain: bool = False, **settings: Any
) -> SessionRun:
    """Simulate sessions; settings are written section__field=value. `plain`: the costs of small_world."""
    whole: dict[str, Any] = {section: dict(fields) for section, fields in WORLD.items()}
    whole["run"] = {"mode": mode}
    whole["workload"] = {"sessions": "by hand", "steps": len(set(sessions.step.tolist()))}
    for path, value in settings.items():
        section, field = path.split("__")
        whole.setdefault(section, {})[field] = value
    config = resolve(whole, policy)
    simulation = Simulation(config, SessionTrace.of(sessions), PLAIN if plain else None)
    lines: list[bytes] = []
    cluster = simulation.run(Recorder(lines.append))
    return SessionRun(cluster, list(read(lines)), lines, simulation)
