"""TRL's GRPOTrainer: one time a step, of training and generation together."""

from __future__ import annotations

from tlt.traces.importers.meaning.key import Framework, key

FRAMEWORK = Framework(
    name="TRL",
    times=("profiling/",),
    note="step_time is of an optimizer step: where steps share a generation, those without one are short. "
    "The rollout is not timed, so that nothing can be checked.",
    keys=(
        key("step_time train/step_time", "step"),
        key("sampling/queue_wait_time_s queue_wait_time_s train/queue_wait_time_s", "side_by_side",
            "AsyncGRPO: the trainer's wait"),
        key("tools/* train/tools/*", "aside", "tools are called; their seconds are not logged"),
        key("profiling/*", "aside", "seconds of one call of a function, several calls a step"),
        key("num_tokens train/num_tokens", "aside", "tokens since the beginning, prompts included"),
    ),
)  # fmt: skip
