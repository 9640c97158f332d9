"""vLLM's schedulers with a K for each engine step, and what every process of an engine needs with them.

The ranks of a tensor parallel engine are processes of their own, which know nothing of what was done to vLLM
in the one that steps them. vLLM sends its settings to each, the scheduler's class among them: so to read them
is to import this, which repairs vLLM there, has it take weights and has it end with its parent. It imports
vllm itself, so that the environment must stand before.
"""

from __future__ import annotations

from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from tlt.realrun.engine import ranks, vllm_compat, vllm_weights
from tlt.realrun.engine.stepped_hooks import SteppedHooks

ranks.end_with_parent()
vllm_compat.repair("cpu" if current_platform.is_cpu() else "cuda")
vllm_weights.register()


class SteppedScheduler(SteppedHooks, Scheduler):  # type: ignore[misc]
    """Plans an engine step once the one before was read."""


class SteppedAsyncScheduler(SteppedHooks, AsyncScheduler):  # type: ignore[misc]
    """Plans an engine step while the one before runs."""
