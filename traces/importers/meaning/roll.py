"""ROLL: `time/*` of its pipelines."""

from __future__ import annotations

from tlt.traces.importers.meaning.key import Framework, key

FRAMEWORK = Framework(
    name="ROLL",
    times=("time/",),
    keys=(
        key("time/step_total", "step"),
        key("time/step_generate time/step_rollout", "gen", "scoring runs within it"),
        key("time/ref_log_probs_values", "logprob"),
        key("time/old_log_probs", "logprob"),
        key("time/adv", "policy_update"),
        key("time/step_train", "policy_update"),
        key("time/step_model_update", "weight_sync"),
        key("time/get_batch_cost_train", "side_by_side", "asynchronous pipeline: the wait for a batch"),
        key("scheduler/off_policy_ratio", "side_by_side"),
        key("time/val_step", "kept"),
        key("time/reward", "aside", "within the rollout"),
        key("time/actor_train/* time/actor_infer/* time/reference/*", "aside", "parts, by worker"),
    ),
)
