"""Metrics of trainers that do not log how many responses a step has."""

from __future__ import annotations

from tlt.traces.importers.base import Importer
from tlt.traces.importers.formats.metrics.drawn import DRAWN, FILE_NAME, Names, reader
from tlt.traces.importers.formats.metrics.stated_count import asked

NOT_COUNTED = "The number of responses of a step is not recorded: --responses says it."
SLIME = Names(
    mean="rollout/response_len/mean",
    longest="rollout/response_len/max",
    shortest="rollout/response_len/min",
    truncated="rollout/truncated_ratio",
    median="rollout/response_len/median",
)
SKYRL = Names(
    mean="generate/avg_num_tokens", longest="generate/max_num_tokens", shortest="generate/min_num_tokens"
)
NEMO_RL = Names(
    mean="gen_tokens_per_sample/mean",
    longest="gen_tokens_per_sample/max",
    shortest="gen_tokens_per_sample/min",
    truncated="truncation_rate",
    median="gen_tokens_per_sample/median",
    before=("train/", ""),
)
ROLL = Names(
    mean="tokens/response_length/mean",
    longest="tokens/response_length/max",
    shortest="tokens/response_length/min",
    prompt="tokens/prompt_length/mean",
)


def _importer(name: str, framework: str, names: Names, written_by: str, product: str, *lost: str) -> Importer:
    return Importer(
        name=name,
        framework=framework,
        file="console log, JSONL, CSV, JSON or TensorBoard events of metrics",
        written_by=written_by,
        kind="generated",
        lengths="generated",
        lost=(*DRAWN, NOT_COUNTED, *lost),
        signs=names.signs,
        detect=names.detect,
        read=reader(names, asked(framework, product, names)),
        file_name=FILE_NAME,
    )


IMPORTERS = (
    _importer(
        "slime-metrics", "slime", SLIME, "its console log, --use-wandb or --use-tensorboard",
        "--rollout-batch-size x --n-samples-per-prompt",
        "Lengths are of tokens that count in the loss: what tools wrote is left out.",
    ),
    _importer(
        "skyrl-metrics", "SkyRL", SKYRL, "trainer.logger=wandb (or console, tensorboard)",
        "trainer.train_batch_size x generator.n_samples_per_prompt",
        "Which responses were cut is not recorded.",
    ),
    _importer(
        "nemo-rl-metrics", "NeMo-RL", NEMO_RL, "logger.wandb_enabled, logger.tensorboard_enabled",
        "grpo.num_prompts_per_step x grpo.num_generations_per_prompt",
    ),
    _importer(
        "roll-metrics", "ROLL", ROLL, "track_with: wandb, tensorboard or stdout",
        "rollout_batch_size x num_return_sequences_in_group",
        "Which responses were cut is not recorded.",
    ),
)  # fmt: skip
