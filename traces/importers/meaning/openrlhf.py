"""OpenRLHF: `timing/*` of its PPO trainer."""

from __future__ import annotations

from tlt.traces.importers.meaning.key import Framework, key

FRAMEWORK = Framework(
    name="OpenRLHF",
    times=("timing/",),
    note="Rewards of a model are within timing/make_experience.",
    keys=(
        key("timing/step_total", "step"),
        key("timing/generation", "gen"),
        key("timing/make_experience", "logprob"),
        key("timing/ppo_train", "policy_update"),
        key("timing/broadcast", "weight_sync"),
        key("rollout/dropped/*", "dropped", "prompts that were generated and filtered out"),
        key("timing/broadcast_lock_wait", "side_by_side", "the trainer's wait for the rollout that goes on"),
        key("timing/vllm_idle_wait timing/actor_idle_wait", "side_by_side"),
        key("timing/broadcast_transfer", "aside", "part of the weight sync"),
    ),
)
