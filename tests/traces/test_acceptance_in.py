"""Acceptance out of logs, counters, results and metrics: the laws that their own counts are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from evidence.metric_keys import DRAFTS
from tlt.commands.trace.group import trace as trace_group
from tlt.sim.config import resolve
from tlt.sim.simulation import law_of
from tlt.traces.importers.acceptance.reading import find_drafts, read_acceptance
from tlt.traces.importers.acceptance.trainer_metrics import ENDS, POSITION
from tltsched.errors import InputError

VLLM_LINE = (
    "(APIServer pid=5) INFO 01-02 10:00:10 [metrics.py:96] SpecDecoding metrics: "
    "Mean acceptance length: {length:.2f}, "
    "Accepted throughput: 54.00 tokens/s, Drafted throughput: 150.00 tokens/s, Accepted: {accepted} tokens, "
    "Drafted: {drafted} tokens, Per-position acceptance rate: {rates}, Avg Draft acceptance rate: 36.0%\n"
    "(APIServer pid=5) INFO 01-02 10:00:10 [loggers.py:127] Engine 000: Avg prompt throughput: 0.0 tokens/s, "
    "Running: 11 reqs, Waiting: 0 reqs\n"
)


def vllm_line(drafts: int, *shares: float, drafted: int | None = None) -> str:
    accepted = round(drafts * sum(shares))
    return VLLM_LINE.format(
        length=1 + sum(shares), accepted=accepted,
        drafted=drafts * len(shares) if drafted is None else drafted,
        rates=", ".join(f"{share:.3f}" for share in shares),
    )  # fmt: skip


def sglang_line(running: int, length: float, rate: float | None = None) -> str:
    told = "" if rate is None else f" accept rate: {rate:.2f},"
    return (
        f"[2026-01-01 10:00:00 TP0] Decode batch. #running-req: {running}, #token: 900, token usage: 0.10, "
        f"accept len: {length:.2f},{told} cuda graph: True, gen throughput (token/s): 300.00, #queue-req: 0\n"
    )


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_vllm_server_log_by_position(tmp_path: Path) -> None:
    # three intervals of 500 drafts of 3: 1,500 drafted, 540 = 500 x (0.62 + 0.31 + 0.15) accepted each
    path = written(tmp_path / "server.log", 3 * vllm_line(500, 0.62, 0.31, 0.15))
    law = read_acceptance(path)
    assert (law.kind, law.survival_by_position) == ("per_position", (0.62, 0.31, 0.15))
    assert law.length_with_bonus == pytest.approx(2.08)
    assert "1,500 drafts of 3" in law.origin


def test_intervals_are_weighted_by_their_drafts(tmp_path: Path) -> None:
    text = vllm_line(100, 0.8, 0.6) + vllm_line(300, 0.4, 0.2) + vllm_line(0, 0.0, 0.0)
    law = read_acceptance(written(tmp_path / "server.log", text))
    assert law.survival_by_position == pytest.approx(((80 + 120) / 400, (60 + 60) / 400))
    assert "range from 1.60 to 2.40" in " ".join(law.notes)


def test_drafts_that_were_less_deep_are_counted_by_what_was_accepted(tmp_path: Path) -> None:
    # 100 verifications, half of them 1 deep and half 3: 200 drafted; shares are of all verifications
    text = vllm_line(100, 0.7, 0.2, 0.1, drafted=200)
    law = read_acceptance(written(tmp_path / "server.log", text))
    assert "100 drafts of 3" in law.origin
    assert "a lower bound" in " ".join(law.notes)


def test_a_log_of_vllm_without_positions_needs_the_settings_or_the_user(tmp_path: Path) -> None:
    line = (
        "INFO [metrics.py:61] SpecDecoding metrics: Draft acceptance rate: 50.0%, "
        "Accepted: 75 tokens, Drafted: 150 tokens\n"
    )
    path = written(tmp_path / "server.log", line)
    with pytest.raises(InputError, match="75 of 150 drafted tokens"):
        read_acceptance(path)
    assert read_acceptance(path, 3).accepted == pytest.approx(1.5)
    stated = "non-default args: {'speculative_config': {'method': 'eagle3', 'num_speculative_tokens': 3}}\n"
    law = read_acceptance(written(path, stated + line))
    # 50 drafts of 3, 75 accepted: r + r^2 + r^3 = 1.5
    assert (law.kind, law.depth) == ("geometric", 3)
    assert law.rate + law.rate**2 + law.rate**3 == pytest.approx(1.5)


def prometheus(
    engines: dict[str, tuple[int, list[int]]], model: str = "m", *, total: str = "_total", made: str = ""
) -> str:
    lines = ["# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.", "# TYPE x counter"]
    for engine, (drafts, accepted) in engines.items():
        labels = f'engine="{engine}",model_name="{model}"'
        lines += [
            f"vllm:spec_decode_num_drafts{total}{{{labels}}} {float(drafts)}",
            *([f"vllm:spec_decode_num_drafts_created{{{labels}}} {made}"] if made else []),
            *([f"process_start_time_seconds {made}"] if made else []),
            f"vllm:spec_decode_num_draft_tokens{total}{{{labels}}} {float(drafts * len(accepted))}",
            f"vllm:spec_decode_num_accepted_tokens{total}{{{labels}}} {float(sum(accepted))}",
            *(
                f'vllm:spec_decode_num_accepted_tokens_per_pos{total}{{{labels},position="{j}"}} {count}.0'
                for j, count in enumerate(accepted)
            ),
        ]
    return "\n".join(lines) + "\n"


def test_counters_of_several_engines_are_added_not_averaged(tmp_path: Path) -> None:
    text = prometheus({"0": (1000, [800, 600]), "1": (100, [20, 10])})
    law = read_acceptance(written(tmp_path / "metrics.txt", text))
    assert law.survival_by_position == pytest.approx((820 / 1100, 610 / 1100), abs=1e-6)
    assert "1,100 drafts of 2" in law.origin


def test_a_later_scrape_replaces_an_earlier_one_and_a_restart_adds(tmp_path: Path) -> None:
    scrapes = [{"0": (100, [50])}, {"0": (400, [240])}, {"0": (50, [40])}]  # the engine began again
    law = read_acceptance(written(tmp_path / "metrics.txt", "".join(prometheus(one) for one in scrapes)))
    assert law.survival_by_position == pytest.approx(((240 + 40) / 450,), abs=1e-6)


def test_scrapes_of_two_servers_with_the_same_labels_add_up(tmp_path: Path) -> None:
    one, more = {"0": (100, [50])}, {"0": (300, [240])}
    two_servers = prometheus(one, made="1.7e+09") + prometheus(more, made="1.8e+09")
    law = read_acceptance(written(tmp_path / "metrics.txt", two_servers))
    assert law.survival_by_position == pytest.approx((290 / 400,), abs=1e-6)
    later = prometheus(one, made="1.7e+09") + prometheus(more, made="1.7e+09")  # of one server
    assert read_acceptance(written(tmp_path / "metrics.txt", later)).survival_by_position == (0.8,)


def test_an_engine_that_drafts_less_deep_does_not_dilute_the_deeper_one(tmp_path: Path) -> None:
    text = prometheus({"0": (100, [60]), "1": (100, [60, 30])}, total="")
    law = read_acceptance(written(tmp_path / "metrics.txt", text))
    assert law.survival_by_position == (0.6, 0.3)


def test_counters_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    rising = prometheus({"0": (1000, [100]), "1": (10, [9, 9])})
    with pytest.raises(InputError, match="which never rise"):
        read_acceptance(written(tmp_path / "metrics.txt", rising))
    models = prometheus({"0": (10, [5])}) + prometheus({"0": (10, [5])}, "other")
    with pytest.raises(InputError, match="one model"):
        read_acceptance(written(tmp_path / "metrics.txt", models))


def test_sglang_counts_the_bonus_and_weighs_by_running_requests(tmp_path: Path) -> None:
    path = written(tmp_path / "server.log", sglang_line(30, 2.0) + sglang_line(10, 3.0))
    with pytest.raises(InputError, match=r"say it \(--drafts K"):
        read_acceptance(path)
    law = read_acceptance(path, 3)
    # (30 x 1 + 10 x 2) / 40 = 1.25 accepted of 3
    assert law.accepted == pytest.approx(1.25)
    assert law.rate + law.rate**2 + law.rate**3 == pytest.approx(1.25)
    with pytest.raises(InputError, match="2 to 64"):
        read_acceptance(path, 1)


@pytest.mark.parametrize("with_bonus", [False, True])
def test_sglang_states_the_drafts_by_length_and_rate(with_bonus: bool, tmp_path: Path) -> None:
    rates = [(n, n / 5 if with_bonus else (n - 1) / 4) for n in (1.6, 2.2, 3.4, 4.0)]  # of 4 drafts
    text = "".join(sglang_line(8, length, rate) for length, rate in rates)
    assert read_acceptance(written(tmp_path / "server.log", text)).depth == 4


def test_sglang_lines_that_fit_two_numbers_of_drafts_are_asked_for(tmp_path: Path) -> None:
    text = sglang_line(8, 2.5, 0.5)  # 3 drafts without the bonus token, 4 with it
    with pytest.raises(InputError, match="--drafts K"):
        read_acceptance(written(tmp_path / "server.log", text))
    stated = "server_args=ServerArgs(speculative_num_steps=3, speculative_eagle_topk=1, other=4)\n"
    assert read_acceptance(written(tmp_path / "server.log", stated + text)).depth == 3
    tree = stated.replace("topk=1", "topk=8")
    with pytest.raises(InputError, match="a tree was drafted"):
        read_acceptance(written(tmp_path / "server.log", tree + text))


def bench(**more: Any) -> dict[str, Any]:
    return {"model_id": "m", "input_lens": [5, 5], "output_lens": [9, 8], "completed": 2} | more


def test_results_of_benchmarks(tmp_path: Path) -> None:
    stated = bench(
        spec_decode_num_drafts=9000, spec_decode_draft_tokens=27000, spec_decode_accepted_tokens=13014,
        spec_decode_acceptance_length=2.446, spec_decode_per_position_acceptance_rates=[0.7, 0.46, 0.286],
    )  # fmt: skip
    law = read_acceptance(written(tmp_path / "bench.json", json.dumps(stated)))
    assert (law.survival_by_position, law.length_with_bonus) == ((0.7, 0.46, 0.286), pytest.approx(2.446))
    sglang = written(tmp_path / "sglang.jsonl", json.dumps({"output_lens": [9], "accept_length": 2.5}))
    assert read_acceptance(sglang, 3).accepted == pytest.approx(1.5)
    assert find_drafts(written(tmp_path / "plain.json", json.dumps(bench()))) is None


@pytest.mark.parametrize(
    ("metrics", "survival"),
    [
        ({"vllm/train/draft_num_draft_tokens": 200, "vllm/train/draft_num_accepted_tokens": 150,
          "vllm/train/draft_mean_acceptance_length": 2.5, "vllm/train/draft_acceptance_rate_pos_1": 0.9,
          "vllm/train/draft_acceptance_rate_pos_2": 0.6, "generate/avg_num_tokens": 9.0,
          "generate/max_num_tokens": 9.0, "eval/draft_acceptance_rate_pos_3": 0.9}, (0.9, 0.6)),
        ({"train/vllm/spec_num_drafts": 100, "train/vllm/spec_num_draft_tokens": 200,
          "train/vllm/spec_num_accepted_tokens": 150, "train/vllm/spec_acceptance_length": 2.5,
          "train/vllm/spec_acceptance_rate-pos-0": 0.9, "train/vllm/spec_acceptance_rate-pos-1": 0.6},
         (0.9, 0.6)),
    ],
    ids=["SkyRL", "NeMo-RL"],
)  # fmt: skip
def test_metrics_of_trainers_by_position(
    metrics: dict[str, float], survival: tuple[float, ...], tmp_path: Path
) -> None:
    path = written(tmp_path / "m.jsonl", "".join(json.dumps({"step": s, **metrics}) + "\n" for s in (1, 2)))
    law = read_acceptance(path)
    assert law.survival_by_position == survival
    assert "200 drafts of 2" in law.origin  # 100 a step: 150 accepted over 2.5 - 1


def test_slime_logs_a_mean_and_its_quotient_may_state_the_drafts(tmp_path: Path) -> None:
    mean_alone = "".join(f"perf {s}: {{'rollout/spec_accept_length': 2.31}}\n" for s in (1, 2))
    path = written(tmp_path / "run.log", mean_alone)
    with pytest.raises(InputError, match=r"2\.31 tokens a verification, bonus included"):
        read_acceptance(path)
    law = read_acceptance(path, 3)
    assert law.rate + law.rate**2 + law.rate**3 == pytest.approx(1.31)
    assert "geometric shape over positions is assumed" in " ".join(law.notes)
    pairs = "".join(
        f"perf {s}: {{'rollout/spec_accept_length': {n}, 'rollout/spec_accept_rate': {(n - 1) / 7:.3f}}}\n"
        for s, n in ((1, 2.31), (2, 3.4), (3, 5.2))
    )
    assert read_acceptance(written(path, pairs)).depth == 7


def test_the_law_is_what_a_simulation_runs_under_and_its_source_says_where_from(tmp_path: Path) -> None:
    path = written(tmp_path / "server.log", vllm_line(500, 0.62, 0.31, 0.15))
    config = resolve({"acceptance": {"read_from": str(path), "request_spread": 0.1}}, "none")
    assert config.acceptance.survival_by_position == (0.62, 0.31, 0.15)
    assert (config.acceptance.kind, config.acceptance.request_spread) == ("per_position", 0.1)
    assert law_of(config.acceptance).source.startswith(
        "measured: vLLM server log server.log: 500 drafts of 3"
    )
    with pytest.raises(InputError, match=r"nothing beside acceptance\.read_from"):
        resolve({"acceptance": {"read_from": str(path), "rate": 0.5}}, "none")
    with pytest.raises(InputError, match="a file or folder that exists"):
        resolve({"acceptance": {"read_from": "nowhere.log"}}, "none")


def test_the_command_writes_a_section_that_a_configuration_takes(tmp_path: Path) -> None:
    path, out = written(tmp_path / "server.log", vllm_line(500, 0.62, 0.31, 0.15)), tmp_path / "a.toml"
    done = CliRunner().invoke(trace_group, ["acceptance", str(path), "--out", str(out)])
    assert done.exit_code == 0, done.output
    import tomllib

    config = resolve(tomllib.loads(out.read_text()), "none")
    assert config.acceptance.survival_by_position == (0.62, 0.31, 0.15)
    assert "500 drafts of 3" in config.acceptance.measured
    told = json.loads(CliRunner().invoke(trace_group, ["acceptance", str(path), "--json"]).output)
    assert told["length_with_bonus"] == pytest.approx(2.08)
    taken = CliRunner().invoke(trace_group, ["acceptance", str(path), "--out", str(out)])
    assert isinstance(taken.exception, InputError)


def test_a_file_without_drafts_says_what_would_have_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Prometheus text"):
        read_acceptance(written(tmp_path / "x.log", "step:1 - timing_s/gen:3\n"))
    with pytest.raises(InputError, match="nothing was drafted"):
        read_acceptance(written(tmp_path / "m.txt", prometheus({"0": (0, [0])}) + sglang_line(0, 1.0)))


def test_the_keys_that_pages_list_are_those_that_are_read() -> None:
    for keys in DRAFTS.values():
        for key in keys:
            ends = tuple(end for names in ENDS.values() for end in names)
            assert key.endswith(ends) or POSITION.search(key), key
