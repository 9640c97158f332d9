"""Which engine a run of jump mode gets: the compiled one where it is there and pays, with the same bits."""

from __future__ import annotations

import os

from tlt.sim.model.engines.jump_engine import JumpEngine

SWITCH = "TLT_COMPILED"  # 0: never, 1: always
PAYS_FROM = 16_384  # responses that a process has simulated or is about to: loading takes half a second
_met = 0


def jump_engine(responses: int) -> type[JumpEngine]:
    """Return the engine for a run of so many responses."""
    global _met
    _met += responses
    switch = os.environ.get(SWITCH, "")
    if switch == "0" or (switch != "1" and _met < PAYS_FROM):
        return JumpEngine
    try:
        from tlt.sim.model.engines.compiled.engine import CompiledJumpEngine
    except (ImportError, OSError):  # no numba, or nowhere to keep what it compiles
        return JumpEngine
    return CompiledJumpEngine
