"""Do memory and descriptors stay flat? `python -m evidence.soak`

2,000 simulated steps of 32 responses, and 1,008 live requests in 28 rollouts on two workers with the engine
of the tests. Memory and open descriptors are looked at along the way, of worker processes as well. A
simulation holds its results, a row a response, until it ends: what grows faster later than before is a leak.
Its growth is that of what Python and numpy hold (tracemalloc): resident memory grows less at first, while
what loading set free is filled up again, and by as much as is held from then on.
Writes soak.json.
"""

from __future__ import annotations

import gc
import os
import tempfile
import tracemalloc
from pathlib import Path

import msgspec
import numpy as np

from evidence.fire.processes import workers
from evidence.recording import OTHERS, device, write
from tlt.realrun.config import WorkloadConfig
from tlt.realrun.replay.replay import replay
from tlt.sim.config import resolve
from tlt.sim.simulation import Simulation
from tlt.sim.workload import load_workload

STEPS, EVERY, RESPONSES, ROLLOUTS = 2_000, 100, 32, 28


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def descriptors(pid: int) -> int:
    """Return how many descriptors a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def simulated() -> dict[str, float]:
    """Return growth over 2,000 simulated steps."""
    config = resolve(
        {
            "hardware": {"gpus": 32}, "policy": "tlt_chains",
            "workload": {"steps": STEPS, "prompts_per_step": 8, "samples_per_prompt": 4,
                         "max_response_tokens": 2000},
        }
    )  # fmt: skip
    simulation = Simulation(config, load_workload(config.workload, 0))
    seen: list[tuple[int, float, int, int]] = []

    def look(step: int) -> None:
        if step % EVERY == EVERY - 1:
            if not tracemalloc.is_tracing():
                tracemalloc.start(1)
            gc.collect()
            held = tracemalloc.get_traced_memory()[0]
            seen.append((step + 1, resident_mb(os.getpid()), descriptors(os.getpid()), held))

    simulation.run(progress=look)
    tracemalloc.stop()
    steps, memory, _, held = (np.array(column, np.float64) for column in zip(*seen, strict=True))
    first, second = (np.polyfit(steps[part], held[part], 1)[0] for part in (slice(2, 11), slice(11, None)))
    return {
        "simulated: memory at step 300": memory[2],
        "simulated: memory at step 2,000": memory[-1],
        "simulated: growth a response, steps 300 to 1,100": first / RESPONSES,
        "simulated: growth a response, steps 1,200 to 2,000": second / RESPONSES,
        "simulated: descriptors more at the end": float(seen[-1][2] - seen[0][2]),
    }


def live() -> dict[str, float]:
    """Return growth over 1,008 live requests, from the fifth rollout on."""
    from tests.realrun.fakes import config_of

    seen: list[list[tuple[float, int]]] = []

    def look(what: str) -> None:
        if what != "warm-up":
            pids = [os.getpid(), *workers(os.getpid())]
            seen.append([(resident_mb(pid), descriptors(pid)) for pid in pids])

    with tempfile.TemporaryDirectory() as top:
        work = WorkloadConfig(requests=36, rollouts=ROLLOUTS, longest_tokens=60, prompt_tokens=8)
        config = msgspec.structs.replace(config_of(Path(top)), workload=work)
        replay(config, ("static:2",), Path(top) / "out", look, None, "tests.realrun.fakes:make_engine")
    more = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(seen[4], seen[-1], strict=True)]
    return {
        "live: memory of the driver more": more[0][0],
        "live: memory of a worker more, at most": max(more[1:])[0],
        "live: descriptors more, at most": float(max(count for _, count in more)),
    }


def main() -> None:
    """Look and write the record."""
    value = {name: round(float(figure), 2) for name, figure in (simulated() | live()).items()}
    growth = [figure for name, figure in value.items() if "growth" in name]
    live_mb = [figure for name, figure in value.items() if name.startswith("live: memory")]
    handles = [figure for name, figure in value.items() if "descriptors" in name]
    write(
        "soak",
        claim="Memory and descriptors over 2,000 simulated steps and 1,008 live requests",
        value=value,
        unit={OTHERS: "MB"}
        | {name: "bytes" for name in value if "growth" in name}
        | {name: "" for name in value if "descriptors" in name},
        measured_on=device(),
        target="no descriptor more; a simulation grows by no more a response later than before, and by less "
        "than 2 kB; a live process by less than 16 MB",
        met=max(handles) <= 0 and max(live_mb) < 16
        and growth[1] < max(1.2 * growth[0], growth[0] + 50) and growth[1] < 2048,
        how="measured: tlt_chains on 8 workers, 32 responses a step; two live workers, engine of the tests",
        command="python -m evidence.soak",
    )  # fmt: skip


if __name__ == "__main__":
    main()
