from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.sim.small_world import trace_of
from tlt.sim.config import Config, resolve
from tlt.sim.policy_set import CHAIN_POLICIES, resolve_policies
from tlt.sim.simulation import Simulation
from tlt.sim.workload import load_workload
from tlt.traces.common.settings import fields, settings_of
from tltsched.errors import InputError
from tltsched.policies import PRESETS
from tltsched.policies.static import StaticConfig
from tltsched.policies.threshold import ThresholdConfig


def test_every_field_has_a_default_and_a_meaning() -> None:
    rows = fields(Config)
    assert len({name for name, _, _ in rows}) == len(rows) > 50
    assert [name for name, default, meaning in rows if not (default and meaning)] == []


def test_defaults_are_a_whole_configuration() -> None:
    config = resolve({})
    assert config.policy == PRESETS["goodput"]
    assert config.workers == 16
    again = msgspec.json.decode(msgspec.json.encode(config), type=Config)
    assert again == config, "the resolved form is itself a configuration"


def test_file_and_assignments_are_merged_and_the_last_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('policy = "none"\n[workload]\nsteps = 3\n[hardware]\ngpus = 8\n', encoding="utf-8")
    assignments = ("workload.steps=5", "run.name=a b", "run.records=false", "workload.steps=6")
    config = resolve(settings_of(path, assignments))
    assert (config.workload.steps, config.hardware.gpus) == (6, 8)
    assert (config.run.name, config.run.records) == ("a b", False)
    assert config.policy == PRESETS["none"]
    assert resolve(settings_of(path, ("policy=static:8_8_32",))).policy == StaticConfig(draft_config="8_8_32")
    assert resolve(settings_of(path, assignments), "tlt").policy == PRESETS["tlt"]


def test_a_policy_may_be_a_table(tmp_path: Path) -> None:
    table = ("policy.kind=threshold", "policy.threshold_requests=5", "policy.inner.kind=static",
             "policy.inner.draft_config='4'")  # fmt: skip
    policy = resolve(settings_of(None, table)).policy
    assert isinstance(policy, ThresholdConfig)
    assert (policy.threshold_requests, policy.inner) == (5, StaticConfig(draft_config="4"))


def test_what_a_named_policy_implies_gives_way_to_the_user() -> None:
    assert resolve({}, "tlt").cluster.spot.enabled
    assert not resolve({}, "none").cluster.spot.enabled
    assert not resolve({"cluster": {"spot": {"enabled": False}}}, "tlt").cluster.spot.enabled
    kept = resolve({"cluster": {"spot": {"interval_steps": 4}}}, "tlt").cluster.spot
    assert (kept.enabled, kept.interval_steps) == (True, 4)
    assert resolve({}, "tlt_released").engine.graph_max_requests == 32
    own = resolve({"engine": {"graph_max_requests": 0}}, "tlt_released").engine
    assert (own.graph_max_requests, own.max_running) == (0, 512)


# assignments -> what the message must hold: the field, what was given, what is allowed
BAD: list[tuple[tuple[str, ...], list[str]]] = [
    (("hardware.gpu_count=4",), ["4 for hardware.gpu_count", "gpus, tp, gpu, model"]),
    (("hardware.gpuz=4",), ["4 for hardware.gpuz", "did you mean hardware.gpu"]),
    (("hardwar.gpus=4",), ["for hardwar;", "run, hardware", "did you mean hardware?"]),
    (("cluster.spot.enable=true",), ["True for cluster.spot.enable;", "did you mean cluster.spot.enabled?"]),
    (("hardware.gpus=many",), ["'many' for hardware.gpus", "`int`"]),
    (("hardware.gpus=4.5",), ["4.5 for hardware.gpus", "`int`"]),
    (("hardware.gpus=-4",), ["-4 for hardware.gpus", ">= 1"]),
    (("run.records=1",), ["1 for run.records", "`bool | null`"]),
    (("hardware=3",), ["3 for hardware;", "`object`"]),
    (("workload.steps=0",), ["0 for workload.steps", ">= 1"]),
    (("workload.max_response_tokens=0",), ["0 for workload.max_response_tokens", ">= 1"]),
    (("workload.group_correlation=1",), ["1 for workload.group_correlation", "< 1.0"]),
    (("phases.reward_s=nan",), ["nan for phases.reward_s", "finite"]),
    (("drafter.stop_s=inf",), ["inf for drafter.stop_s", "finite"]),
    (("workload.length_drift_per_step=nan",), ["nan for workload.length_drift_per_step", "finite"]),
    (("acceptance.survival_by_position=[0.5, nan]",), ["nan for acceptance.survival_by_position", "finite"]),
    (("acceptance.survival_by_position=[0.5, 0.6]",), ["[0.5, 0.6] for acceptance.survival", "never rise"]),
    (("acceptance.survival_by_position=[1.5]",), ["[1.5] for acceptance.survival", "in [0, 1]"]),
    (("acceptance.survival_by_position=[]",), ["[] for acceptance.survival", "in [0, 1]"]),
    (("acceptance.rate=1.1",), ["1.1 for acceptance.rate", "<= 1.0"]),
    (("acceptance.kind=magic",), ["'magic' for acceptance.kind", "published_tree"]),
    (("run.mode=fast",), ["'fast' for run.mode", "jump", "exact"]),
    (("engine.graph_bytes=-1",), ["-1 for engine.graph_bytes", ">= 0.0"]),
    (("engine.memory_fraction=1.2",), ["1.2 for engine.memory_fraction", "<= 1.0"]),
    (("drafter.initial_exponent=0.5",), ["0.5 for drafter.initial_exponent", ">= 1.0"]),
    (("hardware.gpus=6",), ["6 for hardware.gpus", "a multiple of hardware.tp = 4"]),
    (("cluster.phases=['reward', 'lunch']",), ["['lunch'] for cluster.phases", "policy_update"]),
    (("cluster.phases=['reward', 'reward']",), ["for cluster.phases", "each once"]),
    (("cluster.dispatch=random",), ["'random' for cluster.dispatch", "longest_first"]),
    (("cluster.spot.interval_steps=0",), ["0 for cluster.spot.interval_steps", "1 or more"]),
    (("policy=tlt_relaesed",), ["'tlt_relaesed' for policy", "static:DRAFT", "did you mean tlt_released?"]),
    (("policy=static:x",), ["'x' for draft_config", "depth_topk_verify"]),
    (("policy=3",), ["3 for policy;", "preset name"]),
    (("policy.kind=zzz",), ["'zzz' for policy.kind", "beg_mab"]),
    (("policy.kind=static", "policy.draft_confg=4"),
     ["4 for policy.draft_confg", "did you mean policy.draft_config?"]),
    (("workload.steps",), ["'workload.steps' for --set", "section.field=value"]),
    (("workload..steps=3",), ["'workload..steps=3' for --set", "section.field=value"]),
    (("=3",), ["'=3' for --set", "section.field=value"]),
]  # fmt: skip


@pytest.mark.parametrize(("assignments", "told"), BAD, ids=[" ".join(bad) for bad, _ in BAD])
def test_bad_settings_are_told_with_field_value_and_what_is_allowed(
    assignments: tuple[str, ...], told: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        resolve(settings_of(None, assignments))
    message = str(caught.value)
    for part in ("got ", "; allowed: ", *told):
        assert part in message
    assert "\n" not in message
    assert message.count("got ") == 1, "one message, not one inside another"


FILES: list[tuple[bytes, list[str]]] = [
    (b"[workload]\nstep = 3\n", ["3 for workload.step;", "did you mean workload.steps?"]),
    (b"[workload]\nsteps = 'x'\n", ["'x' for workload.steps", "`int`"]),
    (b"[workload\nsteps = 3\n", ["job.toml", "--config", "valid TOML", "line 1"]),
    (b"a = 1\na = 2\n", ["--config", "valid TOML"]),
    (b"\xff\xfe\x00", ["--config", "readable TOML file"]),
]


@pytest.mark.parametrize(("content", "told"), FILES)
def test_bad_files_are_told_like_bad_assignments(content: bytes, told: list[str], tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        resolve(settings_of(path, ()))
    for part in told:
        assert part in str(caught.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.toml' for --config; allowed: a readable TOML file"):
        settings_of(tmp_path / "none.toml", ())
    with pytest.raises(InputError, match="for --config"):
        settings_of(tmp_path, ())


# Found only when the simulation is set up: the field, what was given, what is allowed
SETUP: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"hardware": {"model": "Qwen2.5-32"}}, "none", ["'Qwen2.5-32' for hardware.model", "'Qwen2.5-32B'?"]),
    (
        {"hardware": {"gpu": "H1000"}},
        "none",
        ["'H1000' for hardware.gpu", "A100, A100-40GB", "none of these has its figures"],
    ),
    ({"cost": {"source": "paper"}}, "none", ["'paper' for calibration", "paper-qwen32b-tp4"]),
    ({"hardware": {"tp": 1, "gpu": "L40"}}, "none", ["KV cache on 1 x L40", "at least", "hardware.tp"]),
    ({"engine": {"graph_bytes": 79e9}}, "none", ["KV cache on 4 x H100", "at least"]),
    (
        {"acceptance": {"kind": "published_tree"}},
        "static:4",
        ["'4' for draft_config", "published_tree", "per_position"],
    ),
    ({"acceptance": {"kind": "geometric"}}, "tlt", ["for draft_config", "geometric", "published_tree"]),
]


@pytest.mark.parametrize(("settings", "policy", "told"), SETUP)
def test_settings_that_do_not_fit_together_are_told(
    settings: dict[str, Any], policy: str, told: list[str]
) -> None:
    config = resolve(settings, policy)
    with pytest.raises(InputError) as caught:
        Simulation(config, trace_of([[20_000, 5]], 512))
    for part in ("got ", "; allowed: ", *told):
        assert part in str(caught.value)


def test_unknown_lengths_are_told() -> None:
    with pytest.raises(InputError, match=r"'r1-clent35'.*r1-client35"):
        load_workload(resolve({"workload": {"lengths": "r1-clent35"}}).workload, 0)


def test_a_trace_is_replayed_step_by_step(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    trace_of([[10, 500], [30, 40], [7]], prompt_tokens=0).rows.to_csv(path, index=False)
    settings = {
        "lengths": str(path),
        "replay_steps": True,
        "steps": 2,
        "max_response_tokens": 100,
        "prompt_tokens": 9,
    }
    rows = load_workload(resolve({"workload": settings}).workload, 0).rows
    assert rows["response_tokens"].tolist() == [10, 100, 30, 40]
    assert rows["truncated"].tolist() == [False, True, False, False]
    assert set(rows["prompt_tokens"]) == {9}
    with pytest.raises(InputError, match=r"4 for workload\.steps; allowed: at most the 3 steps"):
        load_workload(resolve({"workload": settings | {"steps": 4}}).workload, 0)


def test_a_policy_without_drafts_trains_no_drafter() -> None:
    settings = {"cluster": {"spot": {"enabled": True}}}
    assert resolve(settings, "tlt").cluster.spot.enabled
    assert not resolve(settings, "none").cluster.spot.enabled


def test_a_schedule_that_overlaps_takes_spot_training_alone_off_a_policy() -> None:
    assert not resolve({}, "tlt@bounded_async").cluster.spot.enabled
    assert resolve({}, "tlt_released@bounded_async").engine.graph_max_requests == 32


@pytest.mark.parametrize(
    ("hardware", "policy", "source", "kind"),
    [
        ({}, "goodput", "roofline", "per_position"),  # published steps of this model are of trees
        ({}, "tlt", "paper-qwen32b-tp4", "published_tree"),
        ({"model": "Qwen2.5-7B", "tp": 1}, "static:4", "vllm-0.32-h100-qwen2.5-7b", "per_position"),
        (
            {"model": "Qwen2.5-7B", "tp": 1, "gpu": "H200"},
            "none",
            "vllm-0.32-h200-qwen2.5-7b",
            "per_position",
        ),
        ({"model": "Qwen2.5-7B", "tp": 1, "gpu": "A100"}, "none", "roofline", "per_position"),
        ({"model": "Qwen2.5-7B", "tp": 2}, "none", "roofline", "per_position"),
    ],
)
def test_what_is_left_open_fits_model_gpu_and_drafts(
    hardware: dict[str, Any], policy: str, source: str, kind: str
) -> None:
    config = resolve({"hardware": hardware}, policy)
    assert (config.cost.source, config.acceptance.kind) == (source, kind)
    named = resolve({"hardware": hardware, "cost": {"source": "paper-qwen32b-tp4"}}, policy)
    assert (named.cost.source, named.acceptance.kind) == ("paper-qwen32b-tp4", "published_tree")


def test_policies_that_are_compared_share_one_law() -> None:
    for names in (["none", "tlt"], ["tlt", "none"]):
        kinds = {each.acceptance.kind for each in resolve_policies({}, names).values()}
        assert kinds == {"published_tree"}
    assert tuple(resolve_policies({})) == CHAIN_POLICIES
