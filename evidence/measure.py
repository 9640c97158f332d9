"""Measures claims of evidence/records again: `python -m evidence.measure [CLAIM ...]`.

A claim is one function and writes one JSON file (evidence.recording.Evidence), from which `python -m
evidence.tables` makes docs/evidence. Claims that are long, or need a run that was just made, are measured
only when they are named; those that need a live engine have a script of their own (NEED_ENGINE: `python -m
evidence.exported_table` and others). Stands apart from the tests: timings depend on the machine.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from evidence.acceptance_claims import ACCEPTANCE
from evidence.counterfactual_claims import COUNTERFACTUAL
from evidence.demo_assumptions import demo_assumptions
from evidence.goodput_claims import GOODPUT
from evidence.interval_coverage import interval_coverage
from evidence.live_claims import crosscheck_cpu, crosscheck_h100, k0_tax
from evidence.model_claims import MODEL
from evidence.other_shapes_claims import OTHER_SHAPES
from evidence.prefill_claims import PREFILL
from evidence.product_claims import demo, fresh_clone, large_file
from evidence.recording import PROJECT
from evidence.roofline_claims import ROOFLINE
from evidence.session_claims import SESSIONS
from evidence.shapes_claims import SHAPES
from evidence.speed_claims import SPEED
from evidence.training_claims import TRAINING
from evidence.training_four_gpus import FOUR_GPUS
from evidence.training_two_gpus import TWO_GPUS
from evidence.two_gpus import two_gpus
from evidence.two_gpus_drafting import two_gpus_drafting
from evidence.two_gpus_replay import two_gpus_replay

CLAIMS: dict[str, Callable[[], None]] = {
    claim.__name__: claim
    for claim in (
        *MODEL, *SPEED, *SHAPES, *ROOFLINE, *OTHER_SHAPES, *PREFILL, two_gpus, two_gpus_drafting,
        two_gpus_replay, large_file, crosscheck_h100, k0_tax, *TRAINING, *TWO_GPUS, *FOUR_GPUS,
        *COUNTERFACTUAL, *GOODPUT, *ACCEPTANCE, *SESSIONS, interval_coverage, demo, demo_assumptions,
        fresh_clone, crosscheck_cpu,
    )
}  # fmt: skip
ON_REQUEST = (
    "fresh_clone", "crosscheck_cpu", "interval_coverage", "goodput_static", "goodput_recorded",
    "acceptance_predicted", "acceptance_modes", "other_shapes", "speed_scale", "sweep_speed", "full_size",
)  # fmt: skip
# A module each.
SCRIPTS = (
    "published_results",
    "published_async",
    "public_questions",
    "released_vs_paper",
    "import_fuzz",
    "import_large",
    "key_fuzz",
    "event_fuzz",
    "hostile_files",
    "kills",
    "soak",
    "full_size",
)
NEED_ENGINE = (
    "natural",
    "regimes",
    "serve_bench",
    "live_sessions",
    "live_schedules",
    "training_runs",
    "training_before",
    "borrowed",  # or an environment with aisimulate
    "peer_speed",  # the same
    "vllm_bench",
    "exported_table",
    "hook_overhead",
    "k0_skip",
    "mutants",  # or cosmic-ray
    "mends",  # or Ray
    "sweep_on_ray",  # Ray
    "lossless",
    "plugin_claims",  # and other versions of it, and TRL
)  # and so does `validate`


def main(names: list[str]) -> None:
    """Measure the named claims, or all but those on request and those that need an engine."""
    unknown = [name for name in names if name not in (*CLAIMS, *SCRIPTS)]
    if unknown:
        sys.exit(f"got {', '.join(unknown)} for CLAIM; allowed: {', '.join((*CLAIMS, *SCRIPTS))}")
    if len(names) == 1 and names[0] in CLAIMS:
        CLAIMS[names[0]]()
        return
    for name in names or [name for name in (*CLAIMS, *SCRIPTS) if name not in ON_REQUEST]:
        # each in a process of its own, so that one claim's memory is not counted to the next
        words = ("evidence.measure", name) if name in CLAIMS else (f"evidence.{name}",)
        subprocess.run([sys.executable, "-m", *words], check=True, cwd=PROJECT)


if __name__ == "__main__":
    main(sys.argv[1:])
