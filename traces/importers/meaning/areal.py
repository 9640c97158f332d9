"""AReaL: `timeperf/*`; its rollouts never are a phase."""

from __future__ import annotations

from tlt.traces.importers.meaning.key import Framework, key

FRAMEWORK = Framework(
    name="AReaL",
    times=("timeperf/",),
    always_side_by_side="AReaL's timeperf/rollout is the trainer's wait for responses",
    keys=(
        key("timeperf/step", "step"),
        key("timeperf/rollout", "gen", "the trainer's wait"),
        key("timeperf/recompute_logp", "logprob"),
        key("timeperf/ref_logp", "logprob"),
        key("timeperf/compute_advantage", "policy_update"),
        key("timeperf/train_step", "policy_update"),
        key("timeperf/update_weights", "weight_sync"),
        key("timeperf/save timeperf/eval timeperf/checkpoint_for_recover timeperf/clear_batches", "aside",
            "every policy keeps it"),
    ),
)  # fmt: skip
