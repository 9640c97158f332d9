"""prime-rl: trainer and orchestrator step side by side, with the same names in two files."""

from __future__ import annotations

from tlt.traces.importers.meaning.key import Framework, key

FRAMEWORK = Framework(
    name="prime-rl",
    times=("time/",),
    always_side_by_side="prime-rl's trainer and orchestrator step side by side",
    note="Trainer and orchestrator step side by side: phases overlap and do not add up to a step.",
    keys=(
        key("time/step", "step"),
        key("time/generate_completions", "gen", "the orchestrator's, while the trainer trains"),
        key("time/forward_backward", "policy_update"),
        key("time/broadcast_weights time/update_weights", "weight_sync"),
        key("time/wait_for_batch", "aside", "the trainer's wait for rollouts"),
        key("time/wait_for_ckpt", "aside", "the orchestrator's wait for weights"),
        key("time/save_ckpt time/eval", "aside", "beside the steps"),
    ),
)
