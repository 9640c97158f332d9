"""slime (and miles, vime): `perf/*` of the rollout manager and of the training actor, two lines a step."""

from __future__ import annotations

from tlt.traces.importers.meaning.key import Framework, key

FRAMEWORK = Framework(
    name="slime",
    times=("perf/",),
    waits=("perf/rollout_time", "perf/train_wait_time"),
    keys=(
        key("perf/step_time", "step"),
        key("perf/rollout_time", "gen", "scoring and filtering of responses included"),
        key("perf/log_probs_time", "logprob"),
        key("perf/ref_log_probs_time", "logprob"),
        key("perf/teacher_log_probs_time", "logprob"),
        key("perf/actor_train_time", "policy_update"),
        key("perf/critic_train_time", "policy_update"),
        key("perf/update_weights_time", "weight_sync"),
        key("perf/non_generation_time/max", "waiting_longest", "tools, as a custom generate function says"),
        key("perf/non_generation_time/min", "waiting_shortest"),
        key("rollout/dynamic_filter/drop_*", "dropped", "groups that were generated and filtered out"),
        key("multi_turn/multi_turn_metric/round_number_mean", "turns"),
        key("perf/train_wait_time", "aside", "the rollout and what is between"),
        key("perf/train_time", "aside", "log-probabilities and update together"),
        key("perf/data_preprocess_time", "kept"),
        key("perf/sleep_time perf/wake_up_time", "kept"),
        key("perf/save_model_time", "kept"),
        key("perf/wait_time_ratio", "aside", "a share"),
        key("perf/effective_tokens_per_gpu_per_sec perf/tokens_per_gpu_per_sec", "rollout_rate",
            "gives the number of GPUs that roll out"),
        key("perf/longest_*", "aside", "facts of the longest response"),
        key("perf/actor_train_t* perf/log_probs_t* perf/ref_log_probs_t*", "aside", "rates"),
        key("perf/non_generation_time/*", "aside", "mean and median of the waiting"),
    ),
)  # fmt: skip
