import copy
import json
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlt.sim.advise.advice import advise
from tlt.sim.advise.best_draft import candidate_draft_configs
from tlt.sim.advise.export.files import SUFFIX, Exported, export, simulation_of, warnings_of
from tlt.sim.advise.export.formats import (
    FORMATS,
    OFF_STATES,
    Target,
    k_ranges,
    to_fastrl,
    to_sglang,
    to_sglang_flags,
    to_trtllm,
    to_verl,
    to_vllm,
)
from tlt.sim.advise.export.table import (
    BatchTable,
    TableRange,
    TableRow,
    _cover,
    batch_table,
    static_draft_config,
)
from tlt.sim.advise.kstar import drafting_configs
from tlt.sim.comparison import compare, run_policy
from tlt.sim.config import resolve
from tlt.sim.policy_set import policy_set
from tlt.sim.simulation import Simulation
from tlt.sim.workload import load_workload
from tlt.traces.common.manifest import seal_also
from tlt.traces.runs.runfolder import BatchAdvice, read_struct, write_json
from tltsched.draft_config import OFF, DraftConfig, chain
from tltsched.errors import InputError
from tltsched.policies import parse_policy
from tltsched.policies.table import TableConfig

CHAINS: dict[str, Any] = {
    "cost": {"source": "vllm-0.32-h100-qwen2.5-7b"},
    "hardware": {"model": "Qwen2.5-7B", "tp": 1, "gpus": 2},
    "workload": {"steps": 2, "prompts_per_step": 32, "samples_per_prompt": 8, "max_response_tokens": 4000},
    "acceptance": {"kind": "per_position", "survival_by_position": [0.5, 0.25, 0.12, 0.06]},
    "engine": {"max_running": 200},
}
TREES: dict[str, Any] = {
    "hardware": {"gpus": 8}, "workload": CHAINS["workload"], "acceptance": {"kind": "published_tree"},
}  # fmt: skip
TARGET = Target(method="eagle3", draft_model="head", max_running=200)


def simulation(settings: dict[str, Any] = CHAINS) -> Simulation:
    config = resolve(settings, "none")
    return Simulation(config, load_workload(config.workload, config.run.seed))


@pytest.fixture(scope="module")
def chains() -> Simulation:
    return simulation()


def table_of(world: Simulation, tolerance: float = 0.01, **more: Any) -> BatchTable:
    draft_configs = more.get("draft_configs") or candidate_draft_configs(world.config)
    return batch_table(world, draft_configs, more.get("when_off", "k0"), tolerance, np.random.default_rng(0))


def made_of(*ranges: tuple[int, int, str]) -> BatchTable:
    """Return a table of these ranges; its figures mean nothing."""

    def at(batch: int, draft_config: str) -> TableRow:
        best = BatchAdvice(
            requests=batch, context_tokens=1.0, draft_config=draft_config, gain=1.5, gain_low=1.4,
            gain_high=1.6, runner_up="off", regret=0.0, regret_high=0.0, extrapolated=False,
        )  # fmt: skip
        return TableRow(draft_config=draft_config, gain=1.5, reached=True, best=best)

    return BatchTable(
        when_off="k0",
        tolerance=0.0,
        cost_error=0.01,
        cost_error_source="a test",
        ranges=tuple(
            TableRange(first=first, last=last, draft_config=draft_config, rows=(at(last, draft_config),))
            for first, last, draft_config in ranges
        ),
    )


def test_a_table_covers_every_batch_once(chains: Simulation) -> None:
    ranges = table_of(chains).ranges
    assert ranges[0].first == 1
    assert ranges[-1].last == 200
    assert all(
        low.last + 1 == high.first and low.draft_config != high.draft_config for low, high in pairwise(ranges)
    )
    assert all(each.last == each.rows[-1].best.requests for each in ranges)


def test_a_table_that_rests_on_assumed_differences_says_so(chains: Simulation) -> None:
    given = msgspec.structs.replace(chains.config.acceptance, request_spread=0.3)
    known = chains.changed(msgspec.structs.replace(chains.config, acceptance=given))
    for world, told in ((chains, True), (known, False)):
        found = warnings_of(world, table_of(world))
        assert any("how requests differ in acceptance is assumed" in text for text in found) is told


def test_without_tolerance_the_table_is_the_advice(chains: Simulation) -> None:
    advised = {row.requests: row for row in advise(chains, np.random.default_rng(0)).rows}
    rows = [row for each in table_of(chains, 0.0, when_off="not_configured").ranges for row in each.rows]
    for row in rows:
        assert row.draft_config == row.best.draft_config
        assert row.gain == pytest.approx(row.best.gain)
        if row.best.requests in advised:
            assert row.reached
            assert row.draft_config == advised[row.best.requests].draft_config


@pytest.mark.parametrize("tolerance", [0.0, 0.01, 0.05])
def test_a_tolerance_gives_up_no_more_than_it_says(chains: Simulation, tolerance: float) -> None:
    table = table_of(chains, tolerance)
    for row in (row for each in table.ranges for row in each.rows):
        assert row.gain >= row.best.gain * (1 - tolerance) - 1e-12
    assert len(table.ranges) <= len(table_of(chains, 0.0).ranges)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.floats(0.5, 3.0), min_size=3, max_size=3), min_size=1, max_size=9), st.floats(0, 0.3)
)
def test_a_cover_is_complete_and_near_the_best(rows: list[list[float]], tolerance: float) -> None:
    gains = np.array(rows)
    runs = _cover(gains, tolerance)
    assert [start for start, _, _ in runs] == [0, *(stop for _, stop, _ in runs[:-1])]
    assert runs[-1][1] == len(rows)
    for start, stop, draft_config in runs:
        assert (
            gains[start:stop, draft_config] >= (1 - tolerance) * gains[start:stop].max(axis=1) - 1e-12
        ).all()


def test_batches_that_the_workload_never_runs_are_judged_and_named(
    chains: Simulation, tmp_path: Path
) -> None:
    rows = [row for each in table_of(chains).ranges for row in each.rows]
    assert {row.best.requests for row in rows if not row.reached} == {192, 200}
    assert rows[-1].best.context_tokens == [row for row in rows if row.reached][-1].best.context_tokens
    _, told = export(chains, "vllm", [], 0.01, TARGET, tmp_path / "t.json")
    assert any("192, 200" in warning and "context assumed" in warning for warning in told.warnings)


def test_off_in_a_vllm_table_is_priced_as_it_runs() -> None:
    """K = 0 costs something, so that K = 1 may be kept where an engine without speculation would win."""
    weak = CHAINS | {"acceptance": {"kind": "geometric", "rate": 0.18}}
    world = simulation(weak)
    last = table_of(world, 0.0).ranges[-1].rows[-1]
    assert last.gain < 1
    plain = table_of(world, 0.0, when_off="not_configured").ranges[-1]
    assert (plain.draft_config, plain.rows[-1].gain) == ("off", 1.0)


def test_the_policy_string_rebuilds_the_table() -> None:
    policy = parse_policy(made_of((1, 8, "4"), (9, 32, "2"), (33, 64, "off")).policy)
    assert policy == TableConfig(draft_configs_by_batch=((1, "4"), (9, "2"), (33, "off")))
    assert made_of((1, 8, "8_4_48"), (9, 64, "off")).policy == "table:1=8_4_48+9=off"


def test_vllm_gets_inclusive_ranges_and_the_largest_k() -> None:
    made = to_vllm(made_of((1, 8, "4"), (9, 32, "2"), (33, 64, "off")), TARGET, "t.json")
    settings = json.loads(made.text)
    assert settings == {
        "method": "eagle3",
        "model": "head",
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 32, 2], [33, 64, 0]],
    }
    assert "vllm serve MODEL --max-num-seqs 200 --speculative-config '{" in made.usage
    assert json.loads(made.usage.split("--speculative-config ")[1].strip("'")) == settings
    bare = to_vllm(made_of((1, 8, "4")), msgspec.structs.replace(TARGET, draft_model=None), "t.json")
    assert "model" not in json.loads(bare.text)
    assert "names no drafter" in bare.notes[0]


def test_verl_gets_settings_and_overrides_that_say_the_same() -> None:
    made = to_verl(made_of((1, 8, "4"), (9, 64, "2")), TARGET, "t")
    rollout = json.loads(made.text)["actor_rollout_ref"]["rollout"]
    drafts = rollout["engine_kwargs"]["vllm"]["speculative_config"]
    assert drafts["num_speculative_tokens_per_batch_size"] == [[1, 8, 4], [9, 64, 2]]
    assert (rollout["max_num_seqs"], drafts["model"]) == (200, "head")
    said: dict[str, Any] = {}
    for override in shlex.split(made.usage)[4:]:
        path, value = override.split("=", 1)
        *above, last = path.removeprefix("+").split(".")
        inner = said
        for key in above:
            inner = inner.setdefault(key, {})
        inner[last] = json.loads(value)
    assert said == json.loads(made.text)


def test_the_command_starts_the_engine_that_was_modelled() -> None:
    table = made_of((1, 4, "3"), (5, 16, "1"))
    other = msgspec.structs.replace(TARGET, tp=2, chunk_tokens=4096, prefix_caching=False)
    words = shlex.split(to_vllm(table, other, "table.json").usage)
    at = words.index("--tensor-parallel-size")
    assert words[at : at + 4] == ["--tensor-parallel-size", "2", "--max-num-batched-tokens", "4096"]
    assert "--no-enable-prefix-caching" in words
    assert "--max-num-batched-tokens" not in to_vllm(table, TARGET, "table.json").usage, "vLLM's own default"


def test_an_export_says_where_its_step_times_are_of_another_engine(
    chains: Simulation, tmp_path: Path
) -> None:
    _, told = export(chains, "vllm", (), 0.01, TARGET, tmp_path / "table.json")
    assert any("engine.graphs=stock" in text for text in told.warnings)
    assert chains.calibration is not None
    measured = copy.copy(chains)
    measured.calibration = msgspec.structs.replace(
        chains.calibration, settings="stock graphs, prefix caching on"
    )
    _, same = export(measured, "vllm", (), 0.01, TARGET, tmp_path / "same.json")
    assert not any("engine.graphs=stock" in text for text in same.warnings)


def test_a_hostile_name_of_a_drafter_stays_one_word() -> None:
    target = msgspec.structs.replace(TARGET, draft_model="a'; rm -rf / #")
    for made in (to_vllm(made_of((1, 8, "4")), target, "t"), to_sglang_flags(chain(2), target)):
        words = shlex.split(made.usage)
        assert any("a'; rm -rf / #" in word for word in words)
        assert ";" not in words
    text = to_fastrl(
        made_of((1, 8, "8_4_48")), msgspec.structs.replace(TARGET, draft_model='a"\nb: c'), "t"
    ).text
    assert 'spec_model_path: "a\\"\\nb: c"' in text


def test_sglang_gets_one_candidate_a_slot() -> None:
    made = to_sglang(made_of((1, 8, "4"), (9, 32, "2"), (33, 64, "off")), TARGET, "a file.json")
    slots = {key: slot for key, slot in json.loads(made.text).items() if key.isdigit()}
    assert slots == {
        "1": {"candidate_steps": [4]}, "9": {"candidate_steps": [2]}, "33": {"candidate_steps": [0]},
    }  # fmt: skip
    assert "SGLang 0.5.23" in json.loads(made.text)["_comment"]
    for words in (
        "--speculative-algorithm EAGLE3 --speculative-draft-model-path head",
        "--speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5",
        "--speculative-adaptive --speculative-adaptive-config 'a file.json'",
    ):
        assert words in made.usage


def test_sglang_flags_hold_a_chain_or_a_tree() -> None:
    assert "--speculative-num-steps 8 --speculative-eagle-topk 4 --speculative-num-draft-tokens 48" in (
        to_sglang_flags(DraftConfig(8, 4, 48), TARGET).text
    )
    with pytest.raises(InputError, match="gains over the whole workload"):
        to_sglang_flags(OFF, TARGET)


def test_trtllm_gets_the_last_batch_of_each_length() -> None:
    made = to_trtllm(made_of((1, 8, "4"), (9, 32, "2"), (33, 64, "off")), TARGET, "a file.json")
    assert json.loads(made.text) == {
        "max_batch_size": 200,
        "speculative_config": {
            "decoding_type": "Eagle3", "max_draft_len": 4, "speculative_model": "head",
            "draft_len_schedule": {"8": 4, "32": 2, "64": 0},
        },
    }  # fmt: skip
    assert made.usage == "trtllm-serve MODEL --max_num_tokens 8192 --config 'a file.json'"
    assert "for the first batch" in made.notes[-1]


@pytest.mark.parametrize(
    ("ranges", "method", "told"),
    [
        (((1, 8, "2"), (9, 64, "4")), "eagle3", "no range that drafts more than the first"),
        (((1, 8, "off"), (9, 64, "2")), "eagle3", "no range that drafts more than the first"),
        (((1, 8, "4"),), "ngram", "eagle3, mtp: drafters whose length"),
        (((1, 8, "8_4_48"),), "eagle3", "holds no trees"),
        (((1, 8, "off"),), "eagle3", "never drafts"),
    ],
)
def test_what_trtllm_cannot_hold_is_refused(
    ranges: tuple[tuple[int, int, str], ...], method: str, told: str
) -> None:
    with pytest.raises(InputError, match=told):
        to_trtllm(made_of(*ranges), msgspec.structs.replace(TARGET, method=method), "t")


def test_fastrl_gets_a_threshold_and_a_bucket_for_each_width() -> None:
    table = made_of(
        (1, 1, "8_4_48"), (2, 4, "8_4_32"), (5, 20, "8_4_16"), (21, 32, "6_4_16"), (33, 64, "off")
    )
    text = to_fastrl(table, TARGET, "t.yaml").text
    for line in (
        "  bs_threshold: 32 #",
        '    mab_configs: ["8_4_32", "8_4_16", "6_4_16"] #',
        "    mab_bs_threshold: [1, 2, 5]",
        "    spec_verify_tokens: 48",
    ):
        assert line in text
    assert to_fastrl(made_of((1, 64, "8_4_48")), TARGET, "t").notes[-1].endswith("threshold of 64.")


@pytest.mark.parametrize(
    ("ranges", "told"),
    [
        ([(1, 8, "4"), (9, 64, "off")], "fastrl drafts no chains"),
        ([(1, 8, "off"), (9, 64, "8_4_48")], "off above it"),
        ([(1, 8, "8_4_16"), (9, 64, "8_4_48")], "fewer tokens to verify at larger batches"),
        ([(1, 64, "off")], "a table that never drafts"),
    ],
)
def test_what_fastrl_cannot_hold_is_refused(ranges: list[tuple[int, int, str]], told: str) -> None:
    with pytest.raises(InputError, match=told):
        to_fastrl(made_of(*ranges), TARGET, "t")


def test_trees_and_tables_that_never_draft_are_refused_where_chains_are_needed() -> None:
    for form in (to_vllm, to_verl, to_sglang):
        with pytest.raises(InputError, match="holds no trees"):
            form(made_of((1, 8, "8_4_48")), TARGET, "t")
        with pytest.raises(InputError, match="never drafts"):
            form(made_of((1, 8, "off")), TARGET, "t")


@pytest.mark.parametrize("form", FORMATS)
def test_every_export_has_its_origin_beside_it(chains: Simulation, form: Any, tmp_path: Path) -> None:
    world = simulation(TREES) if form == "fastrl" else chains
    out = tmp_path / "table.json"
    made, told = export(world, form, [], 0.01, TARGET, out)
    assert out.read_text(encoding="utf-8") == made.text
    origin = read_struct(tmp_path / f"table.json{SUFFIX}", Exported)
    assert origin == told
    starts = {"sglang-flags": "static:", "fastrl": "table:1="}
    assert origin.policy.startswith(starts.get(form, "vllm_table:1-"))
    assert origin.table.when_off == OFF_STATES[form]
    assert world.calibration is not None
    assert origin.step_times_date == world.calibration.date
    assert origin.usage == made.usage
    assert origin.acceptance == world.law.source


def test_the_static_draft_config_is_the_best_one_over_the_whole_workload(chains: Simulation) -> None:
    draft_configs = candidate_draft_configs(chains.config)
    best, gain = static_draft_config(chains, draft_configs)
    assert gain == max(static_draft_config(chains, [draft_config])[1] for draft_config in draft_configs)
    assert static_draft_config(chains, [best]) == (best, gain)
    useless = simulation(CHAINS | {"acceptance": {"kind": "geometric", "rate": 0.0}})
    assert static_draft_config(useless, draft_configs) == (OFF, 1.0)


def test_a_recommendation_and_a_run_are_exported_as_their_configuration(tmp_path: Path) -> None:
    small = CHAINS | {
        "workload": CHAINS["workload"] | {"steps": 1, "prompts_per_step": 4, "max_response_tokens": 400}
    }
    compare(policy_set(small, ["none", "static:2"]), tmp_path / "both", lambda *_: None)
    one = policy_set(small, ["static:2"]).baseline
    run_policy(one, "one", tmp_path / "one", lambda *_: None)
    expected = table_of(simulation(small))
    for name in ("both", "one"):
        world = simulation_of(tmp_path / name)
        assert k_ranges(table_of(world)) == k_ranges(expected)
    summary = json.loads((tmp_path / "one" / "summary.json").read_bytes())
    write_json(tmp_path / "one" / "summary.json", summary | {"kind": "measured"})
    seal_also(tmp_path / "one", "summary.json")
    with pytest.raises(InputError, match="one of a simulation"):
        simulation_of(tmp_path / "one")


def test_draft_configs_can_be_named(chains: Simulation) -> None:
    named = drafting_configs(chains.config, ["off", "4", "2"])
    assert {each.draft_config for each in table_of(chains, 0.0, draft_configs=named).ranges} <= {
        "off",
        "2",
        "4",
    }
