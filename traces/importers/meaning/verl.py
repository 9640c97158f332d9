"""verl: the synchronous trainer, one-step-off, fully asynchronous, agent loops, DAPO's dynamic sampling.

What is built on it logs more: rLLM `traj/*`, verl-agent `episode/*`.
"""

from __future__ import annotations

from tlt.traces.importers.meaning.key import Framework, key

LOOP = "timing_s/agent_loop"
FRAMEWORK = Framework(
    name="verl",
    times=("timing_s/",),
    single_turn=2.0,  # messages: the question and the answer
    note="Without timing_s/update_weights the weights are sent within timing_s/gen.",
    keys=(
        key("timing_s/step", "step"),
        key("timing_s/gen timing/gen timing_s/collect_trajectory", "gen"),
        key("timing_s/reward", "reward", "the wait for rewards that the rollout does not hide"),
        key("timing_s/old_log_prob", "logprob"),
        key("timing_s/ref timing_s/ref_log_prob timing/ref", "logprob"),
        key("timing_s/values timing/values", "logprob"),
        key("timing_s/adv timing/adv", "policy_update"),
        key("timing_s/update_critic timing/update_critic", "policy_update"),
        key("timing_s/update_actor timing_s/fused_update_actor timing/update_actor", "policy_update"),
        key("timing_s/update_weights", "weight_sync"),
        key(f"{LOOP}/slowest/generate_sequences", "decoding_last"),
        key(f"{LOOP}/generate_sequences/max traj/llm_time_max timing_s/generation_timing/max",
            "decoding_longest"),
        key(f"{LOOP}/generate_sequences/min traj/llm_time_min", "decoding_shortest"),
        key(f"{LOOP}/tool_calls/max traj/env_time_max", "waiting_longest"),
        key(f"{LOOP}/compute_score/max traj/reward_time_max", "waiting_longest"),
        key("timing_s/reshard", "within_gen"),
        key("train/num_gen_batches", "generations", "DAPO: until enough groups have unequal rewards"),
        key("num_turns/mean", "turns"),
        key("traj/steps_mean episode/length/mean", "rounds"),
        key("perf/total_num_tokens", "tokens"),
        key("perf/throughput", "step_rate", "gives the number of GPUs"),
        key("fully_async/*", "side_by_side", "timing_s/gen is the trainer's wait for samples there"),
        key("timing_s/param_sync", "side_by_side"),
        key("timing_s/wait_prev_gen", "side_by_side", "one step off: the wait for the batch before"),
        key("timing_s/sync_rollout_weights", "side_by_side"),
        key("timing_s/wait_for_enough_samples", "side_by_side"),
        key(f"{LOOP}/slowest/*", "aside", "facts of the response that ended last"),
        key(f"{LOOP}/*", "aside", "least and mean of single responses"),
        key("timing_s/generate_sequences", "aside", "mean of the workers"),
        key("timing_s/generation_timing/*", "aside", "spread of generation over workers"),
        key("timing_s/gen_max", "aside", "the greedy baseline of REMAX, within gen"),
        key("timing_s/testing", "kept", "validation"),
        key("timing_s/save_checkpoint", "kept"),
        key("timing_s/dump_rollout_generations", "kept"),
        key("timing_s/start_profile timing_s/stop_profile", "kept"),
        key("timing_per_token_ms/*", "aside", "gives the number of responses"),
    ),
)  # fmt: skip
