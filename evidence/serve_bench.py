"""Stock `vllm serve` against the same with the plugin: `python -m evidence.serve_bench DEVICE OUT`

Servers of all arms stand side by side and are asked one at a time, in turns whose order rotates, over HTTP: a
batch of requests with given lengths that queues and then drains. Arms:

    none, static:K      the stock server, without speculation or with K drafts, the plugin not asked for
    ...+watch           the same, with the plugin writing facts
    table               vLLM's own table of K by batch, filled by the calibration of this engine on an H100
    control             the plugin in charge: goodput over all K, step times measured while round 0 warms up

DEVICE is `cuda` (7B shape of random weights, EAGLE-3 head, synthetic acceptance; five servers on one H200,
about eight minutes) or `cpu` (a rehearsal: SmolLM2 shape, n-gram drafts). Each round is a line of
OUT/rounds.jsonl as soon as it is over; the same command goes on, and rounds of other arms may be added. The
table is printed last, and `--table` prints it alone; `python -m evidence.plugin_claims serve OUT` makes the
record. Adaptive verification of vLLM 0.32 is for `dspark`
drafters alone: not compared.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from scipy import stats

from evidence.recording import PROJECT
from evidence.regimes import tlt
from evidence.regimes_serve import PORT, Serving, ask_all, server, version, write_tokenizer
from tlt.commands.output import step_times_of
from tlt.realrun.prompts import vocabulary
from tltsched.draft_config import OFF, chain
from tltsched.policies.base import Batch

SURVIVAL = (0.6, 0.36, 0.24, 0.15)
CALIBRATION = "vllm-0.32-h100-qwen2.5-7b"
GIBIBYTE = 1 << 30


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What is served, and what is asked. Lengths are log-normal, the same in every round."""

    model: str
    max_running: int
    max_context_tokens: int
    memory_fraction: float
    kv_bytes: int
    requests: int
    prompt_tokens: int
    median_tokens: int
    longest_tokens: int
    ks: tuple[int, ...]
    arms: str
    at_once: bool  # servers start at the same time


MACHINES = {
    "cuda": Machine(
        model="Qwen2.5-7B", max_running=64, max_context_tokens=2048, memory_fraction=0.19,
        kv_bytes=4 * GIBIBYTE, requests=256, prompt_tokens=128, median_tokens=150, longest_tokens=800,
        ks=(1, 2, 4), arms="static:2,static:4,static:4+watch,control,table", at_once=True,
    ),
    "cpu": Machine(
        model="SmolLM2-135M", max_running=8, max_context_tokens=256, memory_fraction=0.9, kv_bytes=GIBIBYTE,
        requests=24, prompt_tokens=32, median_tokens=20, longest_tokens=60, ks=(1, 2),
        arms="static:2,static:2+watch,control,table", at_once=False,
    ),
}  # fmt: skip


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One line of rounds.jsonl. Round 0 of a start is for warming up, and counts nowhere."""

    arm: str
    round: int
    start: int  # of the servers, counted in this folder: rounds of one start are compared
    makespan_s: float
    response_tokens: int
    finish_s: tuple[float, ...]


def lengths(machine: Machine) -> list[int]:
    """Return the response tokens of a round."""
    drawn = np.random.default_rng(7).standard_normal(machine.requests)
    tokens = np.rint(machine.median_tokens * np.exp(0.8 * drawn))
    return [int(count) for count in np.clip(tokens, 2, machine.longest_tokens)]


def requests_of(machine: Machine, vocab: int, start: int, number: int) -> list[tuple[list[int], int]]:
    """Return the prompts and lengths of a round; prompts are new ones, so that no cache holds them."""
    rng = np.random.default_rng([start, number])
    return [(rng.integers(1, vocab, machine.prompt_tokens).tolist(), length) for length in lengths(machine)]


def drafts_of(device: str, head: Path, k: int) -> dict[str, Any]:
    """Return vLLM's speculative_config of up to k drafts."""
    if device == "cpu":
        return {"method": "ngram", "num_speculative_tokens": k, "prompt_lookup_max": 3}
    return {"method": "eagle3", "model": str(head), "num_speculative_tokens": k,
            "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": SURVIVAL[:k]}  # fmt: skip


def table_of(machine: Machine) -> list[tuple[int, int, int]]:
    """Return vLLM's table of K by batch: the most tokens a second by the calibration and the survivals."""
    times_of = step_times_of(CALIBRATION)
    assert times_of is not None
    drafts = (OFF, *(chain(k) for k in machine.ks))
    times = times_of(drafts, machine.max_running)
    context = machine.prompt_tokens + machine.median_tokens

    def speed(draft: Any, batch: int) -> float:
        seconds = times.engine_step_s(draft, Batch(batch, batch * context))
        return float((1 + sum(SURVIVAL[: draft.depth])) / seconds)

    rows: list[tuple[int, int, int]] = []
    for batch in range(1, machine.max_running + 1):
        k = max(drafts, key=lambda draft: speed(draft, batch)).depth
        first = rows.pop()[0] if rows and rows[-1][2] == k else batch
        rows.append((first, batch, k))
    return rows


def options_of(machine: Machine, device: str, arm: str, out: Path) -> tuple[str, ...]:
    """Return what `vllm serve` is told beside model and sizes."""
    base = arm.removesuffix("+watch")
    options = ["--enforce-eager"] if device == "cpu" else ["--kv-cache-memory-bytes", str(machine.kv_bytes)]
    if base == "none":
        return tuple(options)
    k = int(base.removeprefix("static:")) if base.startswith("static:") else max(machine.ks)
    drafts = drafts_of(device, out / "model" / "eagle3", k)
    if base == "table":
        drafts["num_speculative_tokens_per_batch_size"] = table_of(machine)
    return (*options, "--speculative-config", json.dumps(drafts))


def folder_of(arm: str) -> str:
    """Return the name of an arm in paths."""
    return arm.replace(":", "-").replace("+", "-")


def variables_of(machine: Machine, arm: str, out: Path) -> dict[str, str]:
    """Return the environment: the plugin can be found in every arm, and is asked for in some."""
    site = out / "site"
    info = site / "tlt_vllm-0.0.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tlt-vllm\nVersion: 0.0.0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\ntlt = tlt_vllm:register\n")
    variables = {"PYTHONPATH": f"{site}:{PROJECT / 'plugin'}:{PROJECT}"}
    if not arm.endswith("+watch") and arm != "control":
        return variables
    place = out / "plugin" / folder_of(arm)
    place.mkdir(parents=True, exist_ok=True)
    mode = "control" if arm == "control" else "watch"
    policy = "goodput:off" + "".join(f"+{k}" for k in machine.ks)
    settings = f'mode = "{mode}"\nout = "job"\npolicy = "{policy}"\nname = "{arm}"\n'
    (place / "tlt.toml").write_text(settings, encoding="utf-8")
    return variables | {"TLT_PLUGIN": str(place / "tlt.toml")}


def prepare(machine: Machine, out: Path) -> None:
    """Write the model folder unless it is there."""
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "model" / "eagle3" / "config.json").is_file():
        shape = ("--shape-only", "--out", str(out / "model"))
        if not tlt(out, 300, "real", "model", machine.model, *shape):
            sys.exit((out / "log.txt").read_text(encoding="utf-8")[-3000:])
    write_tokenizer(out / "model" / "model")


def start_all(
    stack: ExitStack, machine: Machine, device: str, arms: list[str], out: Path, limit_s: float
) -> dict[str, int]:
    """Start the servers; returns the port of each arm that came up, and says why another did not."""
    began_s = time.perf_counter()

    def start(numbered: tuple[int, str]) -> tuple[str, int, Any]:
        number, arm = numbered
        name = folder_of(arm)
        serving = Serving(
            model=out / "model" / "model", device=device, max_running=machine.max_running,
            max_context_tokens=machine.max_context_tokens, memory_fraction=machine.memory_fraction,
            log=out / f"server-{name}.log", result=out / "served.json", port=PORT + 10 + number,
            options=options_of(machine, device, arm, out), variables=variables_of(machine, arm, out),
        )  # fmt: skip
        running = server(serving)
        try:
            running.__enter__()
        except RuntimeError as error:
            print(f"{arm}: {str(error)[-1500:]}", flush=True)
            return arm, 0, None
        return arm, serving.port, running

    with ThreadPoolExecutor(len(arms) if machine.at_once else 1) as threads:
        started = list(threads.map(start, enumerate(arms)))
    for _, _, running in started:
        if running is not None:
            stack.push(running.__exit__)
    took_s = time.perf_counter() - began_s
    print(f"{sum(port > 0 for _, port, _ in started)} of {len(arms)} servers in {took_s:.0f} s", flush=True)
    if took_s > limit_s:
        sys.exit("no time is left to measure: start again with fewer --arms")
    return {arm: port for arm, port, _ in started if port}


def measure(machine: Machine, ports: dict[str, int], out: Path, rounds: int, end_s: float) -> None:
    """Ask every arm `rounds` times, in turns, until `end_s` of the clock; round 0 warms up."""
    vocab, arms = vocabulary(out / "model" / "model"), list(ports)
    start = max((each.start for each in read_rounds(out)), default=-1) + 1
    for number in range(rounds + 1):
        for arm in (*arms[number % len(arms) :], *arms[: number % len(arms)]):
            if time.perf_counter() > end_s:
                return
            finish_s = ask_all(ports[arm], requests_of(machine, vocab, start, number))
            one = Round(
                arm=arm, round=number, start=start, makespan_s=max(finish_s),
                response_tokens=sum(lengths(machine)), finish_s=tuple(finish_s),
            )  # fmt: skip
            with (out / "rounds.jsonl").open("ab") as file:
                file.write(msgspec.json.encode(one) + b"\n")
            print(f"round {number} {arm}: {one.makespan_s:.2f} s", flush=True)


def read_rounds(out: Path) -> list[Round]:
    """Return the rounds that are in the folder."""
    path = out / "rounds.jsonl"
    if not path.is_file():
        return []
    return [msgspec.json.decode(line, type=Round) for line in path.read_bytes().splitlines()]


def ratios(rounds: list[Round], arm: str, over: str) -> list[float]:
    """Return the makespan of an arm over that of another in each round that both have."""
    found: dict[tuple[int, int], dict[str, float]] = {}
    for each in rounds:
        if each.round:
            found.setdefault((each.start, each.round), {})[each.arm] = each.makespan_s
    return [one[arm] / one[over] for one in found.values() if arm in one and over in one]


def excess(values: list[float]) -> tuple[float, float, float]:
    """Return the geometric mean of two ratios or more, less one, with Student's 95 % interval of the logs."""
    logs = np.log(values)
    half = float(stats.t.ppf(0.975, len(values) - 1) * logs.std(ddof=1) / np.sqrt(len(values)))
    mean, low, high = np.expm1(logs.mean() + half * np.array([0.0, -1.0, 1.0])).tolist()
    return mean, low, high


def with_interval(values: list[float]) -> str:
    """Return the same in per cent and words; of one ratio no interval can be told."""
    if len(values) < 2:
        return f"{values[0] - 1.0:+.2%} (one round)" if values else "-"
    return "{:+.2%} [{:+.2%}, {:+.2%}]".format(*excess(values))


def mean_s(rounds: list[Round], arm: str) -> float:
    """Return the mean makespan of an arm in the rounds that count."""
    return statistics.fmean(each.makespan_s for each in rounds if each.arm == arm and each.round)


def stock_arms(rounds: list[Round]) -> list[str]:
    """Return the arms with one K and without the plugin, the best first."""
    arms = dict.fromkeys(each.arm for each in rounds if each.round)
    stock = [arm for arm in arms if "+watch" not in arm and (arm == "none" or arm.startswith("static:"))]
    return sorted(stock, key=lambda arm: mean_s(rounds, arm))


def tell(out: Path) -> None:
    """Print a row an arm: makespan, against the best static K, against the same server without the plugin."""
    rounds = read_rounds(out)
    counted = [each for each in rounds if each.round]
    arms = list(dict.fromkeys(each.arm for each in counted))
    if not arms:
        sys.exit(f"no rounds in {out}")
    statics = stock_arms(rounds)
    took_s = {arm: mean_s(rounds, arm) for arm in arms}
    best = (statics or sorted(arms, key=took_s.__getitem__))[0]
    told = "the best static" if statics else "the best arm, for none is static without the plugin"
    print(f"vLLM {version()}; makespan over that of {best}, {told}, in the same rounds")
    print(f"{'arm':<18}{'rounds':>7}{'mean (s)':>10}  {'over ' + best:<32}over the same without the plugin")
    for arm in sorted(arms, key=took_s.__getitem__):
        stock = arm.removesuffix("+watch")
        alone = with_interval(ratios(rounds, arm, stock)) if stock != arm else ""
        count = sum(each.arm == arm for each in counted)
        told = with_interval(ratios(rounds, arm, best)) if arm != best else "-"
        print(f"{arm:<18}{count:>7}{took_s[arm]:>10.2f}  {told:<32}{alone}")


def main() -> None:
    """Start, measure, print."""
    began_s = time.perf_counter()
    signal.signal(signal.SIGTERM, lambda *_signal: sys.exit(143))  # servers are ended on the way out
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("device", choices=MACHINES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--arms", default="")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=480.0, help="of the whole call")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    machine, out = MACHINES[asked.device], asked.out.resolve()
    if not asked.table:
        prepare(machine, out)
        arms = (asked.arms or machine.arms).split(",")
        with ExitStack() as stack:
            ports = start_all(stack, machine, asked.device, arms, out, asked.seconds - 60)
            if ports:
                measure(machine, ports, out, asked.rounds, began_s + asked.seconds)
    tell(out)


if __name__ == "__main__":
    main()
