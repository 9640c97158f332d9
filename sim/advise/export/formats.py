"""What an engine or trainer reads: tables of vLLM (alone, and as verl starts it), SGLang and TensorRT-LLM,
SGLang's flags, fastrl's strategies.

Names of settings are those of the versions in NAMES_FROM. `tlt real check-export` reads tables back: vLLM's
with the engine's own parser, SGLang's with it where it is installed, else by the rule that the source states.
"""

from __future__ import annotations

from collections.abc import Callable
from shlex import quote
from typing import Literal

import msgspec

from tlt.sim.advise.export.table import BatchTable
from tltsched.draft_config import OFF, DraftConfig
from tltsched.errors import InputError
from tltsched.policies.base import WhenOff
from tltsched.written.draft_config import parse_draft_config

Format = Literal["vllm", "verl", "sglang", "sglang-flags", "trtllm", "fastrl"]
FORMATS: tuple[Format, ...] = ("vllm", "verl", "sglang", "sglang-flags", "trtllm", "fastrl")

SGLANG_NAMES = "SGLang 0.5.23 (speculative/adaptive_spec_params.py, arg_groups/speculative_hook.py)"
NAMES_FROM: dict[Format, str] = {
    "vllm": "vLLM 0.32.0, vllm/config/speculative.py",
    "verl": "verl 0.9.1 (trainer/config/rollout/rollout.yaml), and vLLM's within engine_kwargs.vllm",
    "sglang": SGLANG_NAMES,
    "sglang-flags": SGLANG_NAMES,
    "trtllm": "NVIDIA/TensorRT-LLM at commit 00043967 (llmapi/llm_args.py: DecodingBaseConfig)",
    "fastrl": "mit-han-lab/fastrl, section `speculative` of its trainer, as public launch scripts set it",
}
CHECKED: dict[Format, str] = {
    "vllm": "not yet: `tlt real check-export FILE` reads it with vLLM's own parser",
    "verl": "not yet: `tlt real check-export FILE` reads its table with vLLM's own parser",
    "sglang": "not yet: `tlt real check-export FILE --python ENV/bin/python` reads it with SGLang's own code",
    "sglang-flags": "no: SGLang is not installed with this project",
    "trtllm": "not yet: `tlt real check-export FILE` reads it by the rule of its source, not by its own code",
    "fastrl": "no: fastrl is not installed with this project",
}
# How each engine runs while it drafts nothing. fastrl is plain until it switches speculation on.
OFF_STATES: dict[Format, WhenOff] = {
    "vllm": "k0",
    "verl": "k0",
    "sglang": "k0",
    "sglang-flags": "not_configured",
    "trtllm": "k0",
    "fastrl": "not_configured",
}


FASTRL_GRAPH_REQUESTS = 32  # fixed in its code
FASTRL_GRAPHS = (
    f"fastrl captures CUDA graphs for up to {FASTRL_GRAPH_REQUESTS} requests, and these step times are of "
    "captured graphs: they promise too much up to its threshold of"
)


VERL_DRAFTS = "actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config"
SERVER_CHUNK_TOKENS = 8192  # vLLM's own for a server on a large GPU


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What an export needs to know beside the table."""

    method: str  # vLLM's name of the kind of drafter; SGLang's is the same in capitals
    draft_model: str | None  # name or path
    max_running: int
    tp: int = 1
    chunk_tokens: int = SERVER_CHUNK_TOKENS  # most tokens of an engine step
    prefix_caching: bool = True


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """The text of the file, how to use it, and what to know about it."""

    text: str
    usage: str
    notes: tuple[str, ...]


def k_ranges(table: BatchTable) -> list[tuple[int, int, int]]:
    """Return (first batch, last batch, K), K = 0 where off; raises InputError for trees."""
    ranges = []
    for each in table.ranges:
        draft_config = parse_draft_config(each.draft_config)
        _only_chain(draft_config)
        ranges.append((each.first, each.last, draft_config.depth))
    return ranges


def _only_chain(draft_config: DraftConfig) -> None:
    if not draft_config.is_chain:
        fix = "set acceptance.kind to 'per_position' or 'geometric', or export --format fastrl"
        raise InputError("--format", str(draft_config), "chains of K drafts: this format holds no trees", fix)


def _some_draft(table: BatchTable) -> None:
    if not table.drafts:
        raise InputError(
            "--format", "a table that never drafts", "one that drafts at some batch",
            "run the engine without speculation: it is fastest at every batch of this workload",
        )  # fmt: skip


def _speculative_config(table: BatchTable, target: Target) -> dict[str, object]:
    """Return vLLM's speculative_config with its table of inclusive batch ranges; raises InputError."""
    _some_draft(table)
    ranges = k_ranges(table)
    settings: dict[str, object] = {"method": target.method}
    if target.draft_model:
        settings["model"] = target.draft_model
    settings["num_speculative_tokens"] = max(k for _, _, k in ranges)
    settings["num_speculative_tokens_per_batch_size"] = ranges
    return settings


def to_vllm(table: BatchTable, target: Target, name: str) -> Export:
    """Return the speculative_config of `vllm serve`."""
    settings = _speculative_config(table, target)
    line = quote(msgspec.json.encode(settings).decode())
    notes = [
        "VLLM_USE_V2_MODEL_RUNNER=1 keeps full CUDA graphs while K changes; without it vLLM falls back to "
        "piecewise ones.",
        "vLLM ignores the table where one engine runs data-parallel ranks (--data-parallel-size above 1).",
        "vLLM looks K up by all requests of a step, those in prefill included.",
    ]
    if not target.draft_model:
        notes.insert(0, f'The file names no drafter: give --draft-model, or add "model" to {name}.')
    return Export(
        text=msgspec.json.format(msgspec.json.encode(settings), indent=2).decode() + "\n",
        usage=f"VLLM_USE_V2_MODEL_RUNNER=1 vllm serve MODEL --max-num-seqs {target.max_running} "
        f"{_modelled(target)}--speculative-config {line}",
        notes=tuple(notes),
    )


def to_verl(table: BatchTable, target: Target, name: str) -> Export:
    """Return verl's settings of the rollout, and the overrides that say the same."""
    drafts = _speculative_config(table, target)
    own: dict[str, object] = {
        "tensor_model_parallel_size": target.tp,
        "max_num_seqs": target.max_running,
        "max_num_batched_tokens": target.chunk_tokens,
        "enable_prefix_caching": target.prefix_caching,
    }
    rollout = own | {"engine_kwargs": {"vllm": {"speculative_config": drafts}}}
    settings = {"actor_rollout_ref": {"rollout": rollout}}
    overrides = [f"actor_rollout_ref.rollout.{key}={_hydra(value)}" for key, value in own.items()]
    overrides += [f"+{VERL_DRAFTS}.{key}={_hydra(value)}" for key, value in drafts.items()]
    notes = [
        "verl 0.9.1 pins vLLM 0.24, which drafts the largest K whatever the table says where its V2 model "
        "runner is used: a smaller K then saves verification alone.",
        "verl does not train the drafter that is named here: with model.mtp, method and K come from there.",
    ]
    if not target.draft_model:
        notes.insert(0, f'The file names no drafter: give --draft-model, or add "model" to {name}.')
    return Export(
        text=msgspec.json.format(msgspec.json.encode(settings), indent=2).decode() + "\n",
        usage="python -m verl.trainer.main_ppo ... " + " ".join(map(quote, overrides)),
        notes=tuple(notes),
    )


def _hydra(value: object) -> str:
    """Return a value as Hydra's command line reads it: JSON's lists, numbers and texts are its own."""
    return msgspec.json.encode(value).decode()


def _modelled(target: Target) -> str:
    """Return flags of `vllm serve` where what was modelled is not its default."""
    flags = [f"--tensor-parallel-size {target.tp} "] if target.tp > 1 else []
    if target.chunk_tokens != SERVER_CHUNK_TOKENS:
        flags.append(f"--max-num-batched-tokens {target.chunk_tokens} ")
    return "".join([*flags, *([] if target.prefix_caching else ["--no-enable-prefix-caching "])])


def to_sglang(table: BatchTable, target: Target, name: str) -> Export:
    """Return the file of --speculative-adaptive-config: a slot at the first batch of each range.

    One candidate a slot makes SGLang's rule a table: it has nothing to choose from inside a slot.
    """
    _some_draft(table)
    ranges = k_ranges(table)
    settings: dict[str, object] = {"_comment": f"Names read from {NAMES_FROM['sglang']}."}
    settings |= {str(first): {"candidate_steps": [k]} for first, _, k in ranges}
    most = max(k for _, _, k in ranges)
    flags = _flags(target, DraftConfig(most, 1, most + 1))
    return Export(
        text=msgspec.json.format(msgspec.json.encode(settings), indent=2).decode() + "\n",
        usage=f"python -m sglang.launch_server --model-path MODEL {flags} "
        f"--speculative-adaptive --speculative-adaptive-config {quote(name)}",
        notes=(
            "SGLang pads a batch to its CUDA-graph size before it looks up the slot.",
            "Adaptive steps need EAGLE or EAGLE3 with top-k 1, and no attention data parallelism; otherwise "
            "SGLang warns and stays at the static flags.",
        ),
    )


TRTLLM_TYPES = {"eagle3": "Eagle3", "mtp": "MTP"}  # drafters inside of the engine step
TRTLLM_VERSIONS = (
    "A key is the last batch of its length, as TensorRT-LLM has it since its schedule may begin anywhere: "
    "versions that ask for batch 1 in the schedule take a key for the first batch, and read another table."
)


def to_trtllm(table: BatchTable, target: Target, name: str) -> Export:
    """Return the file of `trtllm-serve --config` with a schedule of draft lengths by the last batch of each.

    Raises InputError for trees, for a drafter whose length TensorRT-LLM cannot change, and for a table that
    drafts more at a larger batch than at the smallest: max_draft_len has to be the length of the first key.
    """
    _some_draft(table)
    ranges = k_ranges(table)
    if target.method not in TRTLLM_TYPES:
        allowed = f"{', '.join(TRTLLM_TYPES)}: drafters whose length TensorRT-LLM changes while it runs"
        raise InputError("--method", target.method, allowed, "name one of them, or export another format")
    if ranges[0][2] != max(k for _, _, k in ranges):
        raise InputError(
            "--format", table.policy, "no range that drafts more than the first, as TensorRT-LLM demands",
            "raise --tolerance, or name fewer: --draft-configs",
        )  # fmt: skip
    speculative: dict[str, object] = {
        "decoding_type": TRTLLM_TYPES[target.method],
        "max_draft_len": ranges[0][2],
        "draft_len_schedule": {str(last): k for _, last, k in ranges},
    }
    if target.draft_model:
        speculative["speculative_model"] = target.draft_model
    settings = {"max_batch_size": target.max_running, "speculative_config": speculative}
    notes = [TRTLLM_VERSIONS]
    if target.method == "eagle3" and not target.draft_model:
        notes.insert(
            0, f'The file names no drafter: give --draft-model, or add "speculative_model" to {name}.'
        )
    parallel = f" --tp_size {target.tp}" if target.tp > 1 else ""
    return Export(
        text=msgspec.json.format(msgspec.json.encode(settings), indent=2).decode() + "\n",
        usage=f"trtllm-serve MODEL{parallel} --max_num_tokens {target.chunk_tokens} --config {quote(name)}",
        notes=tuple(notes),
    )


def to_fastrl(table: BatchTable, target: Target, name: str) -> Export:
    """Return fastrl's `speculative` section: a threshold, and strategies by batch bucket.

    fastrl puts strategies that verify more tokens into buckets of smaller batches, one bucket for each number
    of tokens to verify; it is off above the threshold alone. Raises InputError for a table of another form.
    """
    del name
    _some_draft(table)
    drafting = [
        (each.first, each.last, parse_draft_config(each.draft_config))
        for each in table.ranges
        if each.draft_config != str(OFF)
    ]
    for _, _, draft_config in drafting:
        if draft_config.is_chain:
            raise InputError(
                "--format", f"the chain {draft_config}", "trees such as 8_4_48: fastrl drafts no chains",
                "set acceptance.kind to 'published_tree', or export --format vllm or sglang",
            )  # fmt: skip
    _check_buckets(table, drafting)
    buckets: dict[int, int] = {}  # tokens to verify -> first batch
    for first, _, draft_config in drafting:
        buckets.setdefault(draft_config.verify_tokens, first)
    strategies = [
        str(draft_config) for draft_config in dict.fromkeys(draft_config for _, _, draft_config in drafting)
    ]
    threshold, deepest = drafting[-1][1], drafting[0][2]
    edges = ", ".join(map(str, buckets.values()))
    others = ", ".join(f'"{name}"' for name in strategies[1:])
    lines = [
        f"# Names read from {NAMES_FROM['fastrl']}; not checked by its own parser.",
        "speculative:",
        "  enable: true",
        f'  spec_strategy: "{target.method.upper()}"',
        f"  bs_threshold: {threshold} # speculation starts when an engine runs so few requests",
        "  eagle:",
        *([f"    spec_model_path: {_yaml(target.draft_model)}"] if target.draft_model else []),
        f"    spec_steps: {deepest.depth}",
        f"    spec_topk: {deepest.topk}",
        f"    spec_verify_tokens: {deepest.verify_tokens}",
        '    tune_algorithm: "BEG"',
        f"    mab_configs: [{others}] # beside {strategies[0]}, which the three lines above add",
        f"    mab_bs_threshold: [{edges}]",
    ]
    return Export(
        text="\n".join(lines) + "\n",
        usage=f"put it under the trainer's settings, or add to its command line: speculative.enable=true "
        f"speculative.spec_strategy={target.method.upper()} speculative.bs_threshold={threshold} "
        f"speculative.eagle.spec_steps={deepest.depth} speculative.eagle.spec_topk={deepest.topk} "
        f"speculative.eagle.spec_verify_tokens={deepest.verify_tokens} speculative.eagle.tune_algorithm=BEG "
        f"'speculative.eagle.mab_configs=[{','.join(strategies[1:])}]' "
        f"'speculative.eagle.mab_bs_threshold=[{edges.replace(' ', '')}]'",
        notes=(
            "fastrl switches speculation on after 10 decode batches at or below the threshold, prefills "
            "again, and stays on until the rollout ends.",
            *([f"{FASTRL_GRAPHS} {threshold}."] if threshold > FASTRL_GRAPH_REQUESTS else []),
        ),
    )


def _yaml(text: str) -> str:
    """Return a string as YAML reads it back; JSON's strings are YAML's."""
    return msgspec.json.encode(text).decode()


def _check_buckets(table: BatchTable, drafting: list[tuple[int, int, DraftConfig]]) -> None:
    """Raise InputError unless fastrl can hold the table."""
    if [each.draft_config for each in table.ranges[: len(drafting)]] != [
        str(draft_config) for _, _, draft_config in drafting
    ]:
        raise InputError(
            "--format", table.policy, "drafting up to one batch and off above it, which is all fastrl has",
            "raise --tolerance, or name them: --draft-configs",
        )  # fmt: skip
    widths = [draft_config.verify_tokens for _, _, draft_config in drafting]
    if widths != sorted(widths, reverse=True):
        raise InputError(
            "--format", table.policy, "fewer tokens to verify at larger batches, as fastrl's buckets have",
            "raise --tolerance, or name them: --draft-configs",
        )  # fmt: skip


def to_sglang_flags(draft_config: DraftConfig, target: Target) -> Export:
    """Return SGLang's flags for one draft configuration at every batch; raises InputError for off."""
    if not draft_config.depth:
        raise InputError(
            "--format", "off", "a draft configuration that gains over the whole workload",
            "leave the flags out, or export --format sglang, which can switch off at some batches",
        )  # fmt: skip
    flags = _flags(target, draft_config)
    comment = f"# Names read from {NAMES_FROM['sglang-flags']}."
    return Export(
        text=f"{comment}\n{flags}\n",
        usage=f"python -m sglang.launch_server --model-path MODEL {flags}",
        notes=("One draft configuration for all batches: --format sglang has one for each.",),
    )


def _flags(target: Target, draft_config: DraftConfig) -> str:
    """Return the flags of a static draft configuration.

    SGLang's draft tokens count the root, as verify_tokens does.
    """
    model = f" --speculative-draft-model-path {quote(target.draft_model)}" if target.draft_model else ""
    return (
        f"--speculative-algorithm {target.method.upper()}{model} --speculative-num-steps "
        f"{draft_config.depth} "
        f"--speculative-eagle-topk {draft_config.topk} --speculative-num-draft-tokens "
        f"{draft_config.verify_tokens}"
    )


BY_BATCH: dict[Format, Callable[[BatchTable, Target, str], Export]] = {
    "vllm": to_vllm,
    "verl": to_verl,
    "sglang": to_sglang,
    "trtllm": to_trtllm,
    "fastrl": to_fastrl,
}
