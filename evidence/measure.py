"""Measures every claim of evidence/records again: `python -m evidence.measure [CLAIM ...]`.

Each function below is one claim and writes one JSON file (evidence.tables.Evidence). The fresh-clone claim
needs a git checkout and a network for pip, so it runs only when it is named. Stands apart from the tests: its
timings depend on the machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from evidence.counterfactual_claims import COUNTERFACTUAL
from evidence.live_claims import crosscheck_cpu, crosscheck_h100, k0_tax
from evidence.recording import HERE, PICTURES, PROJECT, write, write_raw
from evidence.training_claims import TRAINING
from tlt.analysis.comparison.advice import ADVICE_HEADERS, advice_cells
from tlt.analysis.comparison.tables import markdown, markdown_rows
from tlt.analysis.report import make_report
from tlt.sim.config import Config, resolve
from tlt.sim.model.acceptance import PublishedTree
from tlt.sim.model.cluster import Cluster
from tlt.sim.simulation import Simulation
from tlt.sim.steptimes.calibration import load, predict_s
from tlt.sim.steptimes.gpus import GPUS
from tlt.sim.steptimes.roofline import Assumptions, roofline
from tlt.sim.workload import load_workload
from tlt.traces.common.models import MODELS
from tlt.traces.common.settings import settings_of
from tlt.traces.runs.runfolder import Advice, read_struct

CONTROL = PROJECT / "sim" / "presets" / "short-tail.toml"


def simulate(settings: dict[str, Any], policy: str | None) -> tuple[Config, Cluster, float]:
    """Return the configuration, the finished cluster and the processor seconds it took (one thread)."""
    config = resolve(settings, policy)
    simulation = Simulation(config, load_workload(config.workload, config.run.seed))
    start_s = time.process_time()
    cluster = simulation.run()
    return config, cluster, time.process_time() - start_s


def published_cells() -> None:
    """Speedups of figure 13 and table 4, half of the cells fitted, simulated end to end."""
    calibration, law = load("paper-qwen32b-tp4"), PublishedTree()
    plain_s = {
        p.batch: predict_s(calibration.coefficients, p) for p in calibration.points if not p.policy.depth
    }
    given_s = {p.batch: p.engine_step_s for p in calibration.points if not p.policy.depth}
    rows = []
    for point in calibration.points:
        if not point.policy.depth:
            continue
        length = law.mean_length_with_bonus(point.policy)
        published = length * given_s[point.batch] / point.engine_step_s
        predicted = length * plain_s[point.batch] / predict_s(calibration.coefficients, point)
        rows.append(
            {
                "policy": str(point.policy), "batch": point.batch, "held_out": point.held_out,
                "published": round(published, 3), "predicted": round(predicted, 3),
            }
        )  # fmt: skip
    raw = write_raw("published_cells.points.jsonl", rows)
    for name, single, target in (("fig13_cells", True, 0.03), ("table4_cells", False, 0.10)):
        errors = [
            abs(row["predicted"] / row["published"] - 1)
            for row in rows
            if row["held_out"] and (row["batch"] == 1) == single
        ]
        write(
            name,
            claim=f"speedup of tree drafting in TLT's {'figure 13' if single else 'table 4, batches 2-32'}, "
            f"error on the {len(errors)} cells that the fit did not see",
            value={"mean": round(float(np.mean(errors)), 4), "max": round(max(errors), 4)},
            unit="share of the published speedup",
            target=f"mean <= {target:.0%}",
            met=bool(np.mean(errors) <= target),
            how="modelled with calibration paper-qwen32b-tp4 (published cells; the plain step is assumed)",
            command="python -m evidence.measure published_cells",
            raw=raw,
        )


def case_study() -> None:
    """The published case study: 128 requests on one worker, threshold 32, rollout 2.44x."""
    rows = {}
    for lengths in ("r1-all", "r1-client35", "r1-client66"):
        settings = settings_of(
            None,
            ("hardware.gpus=4", "workload.steps=40", "workload.prompts_per_step=128",
             "workload.samples_per_prompt=1", f"workload.lengths={lengths}"),
        )  # fmt: skip
        rollout_s = {
            policy: sum(
                row["rollout_end_s"] - row["start_s"] for row in simulate(settings, policy)[1].step_rows
            )
            for policy in ("none", "tlt")
        }
        rows[lengths] = round(rollout_s["none"] / rollout_s["tlt"], 3)
    write(
        "case_study",
        claim="rollout speedup with 128 requests on one TP-4 worker, threshold 32, cap 32,768 "
        "(published: 2.44x; its lengths and model are not published)",
        value=rows,
        unit="x, by length law",
        target="2.44 within 15 % under a stated length law (r1-all: all DeepSeek-R1 serving lengths)",
        met=abs(rows["r1-all"] / 2.44 - 1) <= 0.15,
        how="modelled, policy tlt, 40 draws of 128 responses; drafter without drift",
    )


def random_settings(rng: np.random.Generator) -> tuple[dict[str, Any], str]:
    """Return a random configuration and a policy."""
    tp = int(rng.choice([1, 2, 4]))
    policy = str(rng.choice(["static:10_8_16", "static:8_8_48", "tlt", "tlt_released", "tlt_table"]))
    pairs = (
        f"hardware.tp={max(tp, 2)}", f"hardware.gpus={max(tp, 2) * int(rng.integers(1, 5))}",
        f"workload.lengths={rng.choice(['r1-client35', 'r1-client66', 'r1-all'])}",
        f"workload.max_response_tokens={int(rng.integers(2000, 12000))}", "workload.steps=12",
        f"workload.prompts_per_step={int(rng.integers(8, 33))}",
        f"workload.samples_per_prompt={int(rng.integers(1, 5))}",
        f"acceptance.request_spread={float(rng.choice([0.0, 0.2]))}",
        f"run.seed={int(rng.integers(1000))}",
    )  # fmt: skip
    return settings_of(None, pairs), policy


def jump_vs_exact() -> None:
    """Makespan of the jumping mode against every engine step drawn, on 20 random configurations."""
    rng, rows = np.random.default_rng(20), []
    for _ in range(20):
        settings, policy = random_settings(rng)
        _, jump, jump_s = simulate(settings, policy)
        exact_settings = settings | {"run": settings["run"] | {"mode": "exact"}}
        _, exact, exact_s = simulate(exact_settings, policy)
        rows.append(
            {
                "policy": policy, "settings": settings, "jump_makespan_s": jump.env.now,
                "exact_makespan_s": exact.env.now, "jump_took_s": jump_s, "exact_took_s": exact_s,
            }
        )  # fmt: skip
    differences = np.array([row["jump_makespan_s"] / row["exact_makespan_s"] - 1 for row in rows])
    took = sum(row["exact_took_s"] for row in rows) / sum(row["jump_took_s"] for row in rows)
    write(
        "jump_vs_exact",
        claim="makespan of jump mode against exact mode, 20 random configurations of 12 steps",
        value={
            "mean absolute difference": round(float(np.abs(differences).mean()), 5),
            "largest": round(float(np.abs(differences).max()), 5),
            "mean signed": round(float(differences.mean()), 5),
            "jump seconds": round(sum(row["jump_took_s"] for row in rows), 2),
            "exact seconds": round(sum(row["exact_took_s"] for row in rows), 2),
            "times faster": round(took, 1),
        },
        unit="share of the makespan; seconds of one core",
        target="mean <= 0.5 %",
        met=bool(np.abs(differences).mean() <= 0.005),
        how="measured, both modes drawn from the same seed (their draws differ)",
        raw=write_raw("jump_vs_exact.points.jsonl", rows),
    )


def speed() -> None:
    """The published production scale: 385 steps of 2,048 responses on 128 GPUs."""
    settings = settings_of(
        None,
        ("hardware.gpus=128", "workload.steps=385", "workload.prompts_per_step=256",
         "workload.max_response_tokens=20480"),
    )  # fmt: skip
    values: dict[str, float] = {}
    for policy in ("none", "tlt"):
        runs = [simulate(settings, policy) for _ in range(3 if policy == "tlt" else 1)]
        took_s = float(np.median([seconds for _, _, seconds in runs]))
        values[f"{policy}: seconds"] = round(took_s, 2)
        values[f"{policy}: simulated / wall"] = round(float(runs[0][1].env.now) / took_s)
    with tempfile.TemporaryDirectory() as folder:
        config = resolve(settings, "tlt")
        simulation = Simulation(config, load_workload(config.workload, 0))
        start_s = time.process_time()
        simulation.run_into(Path(folder), "tlt")
        values["tlt with records on disk: seconds"] = round(time.process_time() - start_s, 2)
    write(
        "speed",
        claim="simulating 385 RL steps x 2,048 responses on 128 GPUs (TP 4), paper's policy, R1 lengths",
        value=values,
        unit="processor seconds of one core; simulated seconds per second",
        target="tlt <= 30 s",
        met=values["tlt: seconds"] <= 30,
        how="measured as processor time of one thread, median of 3, without records unless said",
    )


def short_tail() -> None:
    """The control: chat lengths with a short tail, and drafters from weak to useless."""
    dropped = {
        "kind": "goodput",
        "policies": ["off", "1", "2", "4"],
        "when_off": "drafter_dropped",
        "entry": "draft_prefill",
    }
    policies: dict[str, Any] = {
        "static:4": "static:4",
        "tlt_chains": "tlt_chains",
        "goodput, K = 0 kept in step": "goodput:off+1+2+4",
        "goodput, drafter dropped": dropped,
    }  # fmt: skip
    drafters = {"weak": "[0.5,0.25,0.12,0.06]", "poor": "[0.25,0.06,0.02]", "useless": "[0.1,0.01]"}
    rows = []
    for name, survival in drafters.items():
        settings = settings_of(CONTROL, (f"acceptance.survival_by_position={survival}",))
        base_s = total_step_s(settings | {"policy": "none"})
        for policy, policy in policies.items():
            speedup = base_s / total_step_s(settings | {"policy": policy})
            rows.append(
                {"policy": policy, "drafter": name, "survival": survival, "speedup": round(speedup, 4)}
            )
    values = {policy: min(row["speedup"] for row in rows if row["policy"] == policy) for policy in policies}
    write(
        "short_tail",
        claim="short-tail control (Azure conversation lengths, 128 requests a GPU): what policies that adapt "
        "to acceptance lose",
        value=values,
        unit="x, lowest step speedup over three drafters (accepting 50, 25 and 10 % of first drafts)",
        target="goodput >= 0.99 with every drafter (K = 0 kept in step pays vLLM's tax and may miss it)",
        met=values["goodput, drafter dropped"] >= 0.99,
        raw=write_raw("short_tail.points.jsonl", rows),
        how="modelled, sim/presets/short-tail.toml; step times measured on one H100, acceptance assumed",
    )


def total_step_s(settings: dict[str, Any]) -> float:
    """Return the sum of the step times."""
    return float(simulate(settings, None)[1].env.now)


def books() -> None:
    """GPU-seconds by cause against GPUs x wall time over random runs of every policy."""
    rng, worst = np.random.default_rng(7), 0.0
    for _ in range(40):
        settings, policy = random_settings(rng)
        _, cluster, _ = simulate(settings, policy)
        _, intervals, _ = cluster.tables()
        booked = float((intervals["end_s"] - intervals["start_s"]).sum())
        total = cluster.env.now * len(cluster.workers)
        worst = max(worst, abs(booked / total - 1))
    write(
        "books",
        claim="GPU-seconds by cause add up to GPUs x wall time, 40 random runs",
        value=worst,
        unit="largest relative difference",
        target="<= 1e-9",
        met=worst <= 1e-9,
        how="measured; also a property test (tests/sim/test_simulation.py)",
    )


def determinism() -> None:
    """Two runs with one seed."""
    settings = settings_of(None, ("workload.steps=2",))
    with tempfile.TemporaryDirectory() as folder:
        contents = []
        for name in ("first", "second"):
            config = resolve(settings, "tlt")
            Simulation(config, load_workload(config.workload, 0)).run_into(Path(folder) / name, "tlt")
            contents.append((Path(folder) / name / "records.jsonl").read_bytes())
    write(
        "determinism",
        claim="two runs with one seed give the same records.jsonl, byte for byte",
        value=float(contents[0] == contents[1]),
        unit=f"1 = identical, over {len(contents[0]):,} bytes",
        target="identical",
        met=contents[0] == contents[1],
        how="measured",
    )


def large_file() -> None:
    """Describing a trace of ten million rows in bounded memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.csv"
        rng = np.random.default_rng(0)
        with path.open("w", encoding="ascii") as file:
            file.write("response_tokens\n")
            for _ in range(1000):
                file.write("\n".join(map(str, rng.integers(1, 32_768, 10_000).tolist())) + "\n")
        program = (
            "import sys; from pathlib import Path; from tlt.traces.lengths.files import length_histogram; "
            "h = length_histogram(Path(sys.argv[1])); "
            "status = Path('/proc/self/status').read_text(); "
            "print(h.rows, status.split('VmHWM:')[1].split()[0])"
        )
        start_s = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
        )
        took_s = time.perf_counter() - start_s
    rows, kilobytes = (int(word) for word in done.stdout.split())
    write(
        "large_file",
        claim="a CSV of 10,000,000 responses is read for `tlt trace describe` in bounded memory",
        value={"rows": rows, "peak memory MB": round(kilobytes / 1024), "seconds": round(took_s, 1)},
        unit="as named",
        target="an answer, peak memory below 600 MB",
        met=rows == 10_000_000 and kilobytes / 1024 < 600,
        how="measured, peak resident memory (VmHWM) of a process of its own",
    )


def roofline_vs_measured() -> None:
    """The assumed step times against the measured ones, where both exist."""
    calibration = load("vllm-0.32-h100-qwen2.5-7b")
    assumed = roofline(MODELS[calibration.model], GPUS["H100"], calibration.tp, Assumptions())
    used = [point for point in calibration.points if not point.excluded]
    errors = [abs(predict_s(assumed, point) / point.engine_step_s - 1) for point in used]
    write(
        "roofline_vs_measured",
        claim="roofline (assumed) against step times measured with vLLM 0.32 on one H100, 7B shape",
        value={"mean": round(float(np.mean(errors)), 4), "max": round(max(errors), 4)},
        unit="share of the measured step",
        target="none: it says how far an assumed step time may be off",
        met=True,
        how="modelled against measured points of sim/steptimes/calibrations",
    )


def fresh_clone() -> None:
    """`make demo` in a fresh clone in a new folder."""
    root = PROJECT
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(root), str(clone)], check=True)
        environment = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"}
        start_s = time.perf_counter()
        done = subprocess.run(["make", "demo"], cwd=clone, env=environment, check=False)
        took_s = time.perf_counter() - start_s
        start_s = time.perf_counter()
        again = subprocess.run(["make", "demo"], cwd=clone, env=environment, check=False)
        again_s = time.perf_counter() - start_s
    write(
        "fresh_clone",
        claim="`make demo` in a fresh clone in a new folder ends in success",
        value={
            "exit code": done.returncode,
            "seconds with set-up": round(took_s),
            "second call": round(again_s),
        },
        unit="as named",
        target="exit code 0",
        met=done.returncode == 0 and again.returncode == 0,
        how="measured; set-up downloads about 150 MB of wheels, its share depends on the network",
    )


def demo() -> None:
    """The demonstration's tables and pictures, as README shows them."""
    root = PROJECT
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "demo"
        command = [
            "sim",
            "recommend",
            "--config",
            str(root / "sim" / "presets" / "demo.toml"),
            "--out",
            str(out),
        ]
        subprocess.run([sys.executable, str(root / "tlt.py"), *command], check=True, cwd=root)
        report = make_report(out)
        (HERE / "demo.md").write_text(markdown(report.table) + "\n", encoding="utf-8")
        advice = read_struct(out / "advice.json", Advice)
        rows = [cells for cells in advice_cells(advice) if int(cells[0].rstrip("*")) in (1, 4, 16, 64, 128)]
        (HERE / "demo_advice.md").write_text(markdown_rows(ADVICE_HEADERS, rows) + "\n", encoding="utf-8")
        for name in ("gantt", "ledger", "running", "gain"):
            shutil.copy(out / "pictures" / f"{name}.png", PICTURES / f"{name}.png")
        best = next(row for row in report.table.rows if row.policy == report.verdict.best)
    write(
        "demo",
        claim=f"demonstration: step speedup of {best.policy} over no speculation",
        value={
            "speedup": round(best.speedup.value, 3),
            **dict(
                zip(("low", "high"), (round(end, 3) for end in best.speedup.interval or ()), strict=False)
            ),
        },
        unit="x, 95 % interval over steps",
        target="none: what the demonstration prints",
        met=True,
        how="modelled: published speedups over an assumed plain step, recorded serving lengths",
    )


CLAIMS: dict[str, Callable[[], None]] = {
    claim.__name__: claim
    for claim in (
        published_cells, case_study, jump_vs_exact, speed, short_tail, books, determinism, large_file,
        roofline_vs_measured, crosscheck_h100, k0_tax, *TRAINING, *COUNTERFACTUAL, demo,
        fresh_clone, crosscheck_cpu,
    )
}  # fmt: skip
ON_REQUEST = ("fresh_clone", "crosscheck_cpu")  # long, or in need of a run that was just made


def main(names: list[str]) -> None:
    """Measure the named claims, or all but those on request."""
    unknown = [name for name in names if name not in CLAIMS]
    if unknown:
        sys.exit(f"got {unknown} for CLAIM; allowed: {', '.join(CLAIMS)}")
    if len(names) == 1:
        CLAIMS[names[0]]()
        return
    for name in names or [name for name in CLAIMS if name not in ON_REQUEST]:
        # each in a process of its own, so that one claim's memory is not counted to the next
        subprocess.run([sys.executable, __file__, name], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
