"""NeMo-RL: GRPO, its asynchronous variant, dynamic sampling."""

from __future__ import annotations

from tlt.traces.importers.meaning.key import Framework, key

FRAMEWORK = Framework(
    name="NeMo-RL",
    times=("timing/train/",),
    keys=(
        key("timing/train/total_step_time", "step"),
        key("timing/train/generation", "gen"),
        key("timing/train/reward_calculation", "reward"),
        key("timing/train/policy_and_reference_logprobs", "logprob"),
        key("timing/train/logprob_inference_prep", "logprob"),
        key("timing/train/policy_training", "policy_update"),
        key("timing/train/training_prep", "policy_update"),
        key("timing/train/advantage_calculation", "policy_update"),
        key("timing/train/weight_sync timing/train/prepare_for_generation/total", "weight_sync"),
        key("train/dynamic_sampling_num_gen_batches dynamic_sampling_num_gen_batches", "generations"),
        key("train/avg_turns_per_sample avg_turns_per_sample train/turns_per_sample/mean", "turns"),
        key("timing/train/exposed_generation", "side_by_side", "the trainer's wait for trajectories"),
        key("train/buffer_size buffer_size train/avg_trajectory_age avg_trajectory_age", "side_by_side"),
        key("timing/train/prepare_for_generation/*", "aside", "parts of the weight sync"),
        key("timing/train/data_processing", "kept"),
        key("timing/train/validation", "kept"),
        key("timing/train/checkpointing", "kept"),
        key("timing/train/valid_tokens_per_sec_per_gpu", "aside", "a rate, not seconds"),
    ),
)
