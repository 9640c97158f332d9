"""SkyRL: the synchronous trainer and the asynchronous ones."""

from __future__ import annotations

from tlt.traces.importers.meaning.key import Framework, key

FRAMEWORK = Framework(
    name="SkyRL",
    times=("timing/",),
    keys=(
        key("timing/step", "step"),
        key("timing/generate", "gen", "environment steps and scoring included"),
        key("timing/fwd_logprobs_values_reward", "logprob"),
        key("timing/compute_advantages_and_returns", "policy_update"),
        key("timing/train_critic_and_policy timing/policy_train", "policy_update"),
        key(
            "timing/sync_weights timing/sync_weights_to_inference_engines "
            "timing/sync_policy_weights_to_inference_engines",
            "weight_sync",
        ),
        key("generate/avg_num_turns generate/num_turns_mean", "turns"),
        key("timing/wait_for_generation_buffer", "side_by_side", "the trainer's wait"),
        key("async/*", "side_by_side"),
        key("timing/run_training", "aside", "log-probabilities, advantages and update together"),
        key("timing/postprocess_*", "kept"),
        key("timing/convert_to_training_input", "kept"),
        key("timing/policy_* timing/critic_*", "aside", "parts of the update"),
        key("timing/apply_reward_kl_penalty", "kept"),
        key("timing/eval timing/save_checkpoints timing/save_hf_model", "kept"),
        key("timing/offload_* timing/backload_*", "kept"),
    ),
)  # fmt: skip
