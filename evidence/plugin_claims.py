"""What is claimed of the vLLM plugin.

    python -m evidence.plugin_claims versions RESULTS
    python -m evidence.plugin_claims faults RESULT
    python -m evidence.plugin_claims serve OUT
    python -m evidence.plugin_claims trl PYTHON MODEL OUT

The first reads what `make versions` wrote, the second the line of plugin/contract/faults.py, the third the
rounds of evidence.serve_bench, on a CPU or a GPU. The last trains with TRL's GRPO four times: alone, watched,
advised and in charge, as examples/trl_plugin says. PYTHON is that of an environment with TRL, vLLM 0.32 for
CPU and the distribution tlt-vllm.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from evidence.recording import HERE, OTHERS, PROJECT, Figure, device, tlt, write, write_raw
from evidence.serve_bench import MACHINES, excess, folder_of, ratios, read_rounds, stock_arms
from tlt.analysis.crosscheck.decisions import replay_decisions
from tlt.plugin.versions import KNOWN
from tlt.traces.live.engines import read_engines
from tlt.traces.runs.engine_steps import read_engine_steps
from tlt.traces.runs.runfolder import RunFolder
from tltsched.errors import InputError

EXAMPLE = PROJECT / "examples" / "trl_plugin"
MODES = ("alone", "watch", "advise", "control")
GREEDY = MODES[:2]  # those whose tokens are compared; the others sample, so that the policy learns something
WATCH_COST, CONTROL_LOSS = 0.005, 0.01  # of the makespan, and of the goodput, at most
TABLE = {1: 3, 2: 3, 3: 3, 4: 2, 5: 2, 6: 2, 7: 2}  # K by batch, as control.toml says; 0 above
ANSWER = (
    "--gpus", "1", "--tp", "1", "--set", "hardware.gpu=H100", "--set", "hardware.model=Qwen2.5-7B",
    "--set", "cost.source=vllm-0.32-h100-qwen2.5-7b",
)  # fmt: skip


class Result(msgspec.Struct, frozen=True):
    """A line that plugin/contract/one_engine.py prints."""

    vllm: str
    model: str
    engine_steps: int  # of the watched one
    drafted_tokens: int  # of the one in charge
    checks: dict[str, bool]
    cannot_draft: str = ""  # why an engine without the plugin cannot draft either


def versions(results: Path) -> None:
    """Write how many checks of its contract each version of vLLM keeps; its last result counts."""
    lines = [line for line in results.read_bytes().splitlines() if line.startswith(b"{")]
    found = {each.vllm: each for each in map(msgspec.json.Decoder(Result).decode, lines)}
    tried = {".".join(version.split(".")[:2]) for version in found}
    value: dict[str, Figure] = {
        f"vLLM {version}": float(sum(each.checks.values())) for version, each in sorted(found.items())
    }
    asked = max(len(each.checks) for each in found.values())
    heads = ("vLLM", "model", "steps watched", "drafts verified in charge", "checks kept", "not kept")
    rows = [f"| {' | '.join(heads)} |", len(heads) * "|---" + "|"]
    for version, each in sorted(found.items()):
        kept = f"{sum(each.checks.values())} of {asked}"
        cells = (version, each.model, each.engine_steps, each.drafted_tokens, kept, _unkept(each))
        rows.append(f"| {' | '.join(map(str, cells))} |")
    (HERE / "plugin_versions.md").write_text("\n".join(rows) + "\n", encoding="utf-8")
    all_kept = all(sum(each.checks.values()) == asked for each in found.values())
    write(
        "plugin_versions",
        claim=f"the plugin in each version of vLLM that it knows: checks of its contract kept, of {asked}",
        value=value,
        unit={OTHERS: f"checks of {asked}"},
        target=f"all of them, for {', '.join(KNOWN)}",
        met=all_kept and tried == set(KNOWN),
        how="measured: float32, greedy, no graphs; without the plugin, watched, in charge, and with a policy "
        "that fails (plugin/contract/one_engine.py); " + "; ".join(sorted(_models(found))),
        measured_on=f"{device()}, vLLM for CPU",
        command="make versions && python -m evidence.plugin_claims versions out/versions/results.jsonl",
    )


def _unkept(result: Result) -> str:
    """Say which checks a version does not keep, and which it cannot be asked."""
    if result.cannot_draft:
        return f"watched alone: without the plugin it cannot draft either (`{result.cannot_draft}`)"
    return "; ".join(name for name, kept in result.checks.items() if not kept) or "-"


def _models(found: dict[str, Result]) -> set[str]:
    """Return each model with the versions that ran it."""
    models = {each.model for each in found.values()}
    return {
        f"{model}: {', '.join(sorted(name for name, each in found.items() if each.model == model))}"
        for model in models
    }


class Faults(msgspec.Struct, frozen=True):
    """The line that plugin/contract/faults.py prints, by fault: same tokens or not, what was said."""

    model: str
    faults: dict[str, dict[str, Any]]


def faults(result: Path) -> None:
    """Write how many faults left the requests alone and were said in one line."""
    lines = [line for line in result.read_bytes().splitlines() if line.startswith(b"{")]
    told = msgspec.json.decode(lines[-1], type=Faults)
    found = told.faults
    value: dict[str, Figure] = {
        "faults": float(len(found)),
        "of them with the tokens of a stock engine": float(
            sum(each["same tokens"] for each in found.values())
        ),
    }
    value |= {f"{name}: lines said": float(len(each["said"])) for name, each in found.items()}
    rows = ["| what breaks | tokens of a stock engine | what it says after `tlt:` |", "|---|---|---|"]
    for name, each in found.items():
        same = "yes" if each["same tokens"] else "NO"
        rows.append(f"| {name} | {same} | {'<br>'.join(map(_without_paths, each['said'])) or 'nothing'} |")
    (HERE / "plugin_faults.md").write_text("\n".join(rows) + "\n", encoding="utf-8")
    write(
        "plugin_faults",
        claim="what an engine does while the plugin in charge of it breaks",
        value=value,
        unit={OTHERS: "count"},
        target="every request ends with the tokens of a stock engine, and one line says what happened",
        met=all(each["kept"] for each in found.values()),
        how=f"measured: {told.model}, float32, greedy, 16 requests of 8 to 56 tokens",
        measured_on=f"{device()}, vLLM 0.32.0 for CPU",
        command="python plugin/contract/faults.py MODEL OUT > RESULT && "
        "python -m evidence.plugin_claims faults RESULT",
    )


def _without_paths(text: str) -> str:
    return re.sub(r"(/[\w.-]+)+/", ".../", text.removeprefix("tlt: "))


def serve(out: Path) -> None:
    """Write what the plugin costs a stock server, and what it gains in charge of one, in the same rounds.

    A target is met where the whole interval is within it: goodput of at least 1 - x is a makespan of at most
    1 / (1 - x), for all arms serve the same requests. Raises InputError where an arm or a second round lacks.
    """
    rounds = read_rounds(out)
    counted = [each for each in rounds if each.round]
    arms = list(dict.fromkeys(each.arm for each in counted))
    stock, control = stock_arms(rounds), "control"
    watched = [arm for arm in arms if arm.endswith("+watch") and arm.removesuffix("+watch") in arms]
    asked = [(arm, arm.removesuffix("+watch")) for arm in watched]
    asked += [(arm, stock[0]) for arm in (control, "table") if arm in arms and stock]
    over = {arm: ratios(rounds, arm, base) for arm, base in asked}
    if not watched or control not in over or min(map(len, over.values())) < 2:
        raise InputError(
            "OUT", f"{out}, with rounds of {', '.join(arms) or 'nothing'}",
            "two rounds or more of a static arm, the same with +watch, and control",
            "go on: python -m evidence.serve_bench DEVICE OUT",
        )  # fmt: skip
    engines = {arm: read_engines(out / "plugin" / folder_of(arm) / "job") for arm in (control, *watched)}
    stopped = sum(len(log.faults) for logs in engines.values() for log in logs)
    about = engines[control][0].about
    value: dict[str, Figure] = {f"{arm} over {base}": rounded(excess(over[arm])) for arm, base in asked}
    kept = all(excess(over[arm])[2] <= WATCH_COST for arm in watched)
    kept = kept and excess(over[control])[2] <= 1.0 / (1.0 - CONTROL_LOSS) - 1.0
    kind = "cpu" if "CPU" in about.device else "cuda"
    name = f"plugin_serve_{kind}"
    count = {
        "rounds, at least": float(min(map(len, over.values()))),
        "times the plugin stopped": float(stopped),
    }
    write(
        name,
        timed=True,
        claim=f"stock `vllm serve` with the plugin against the same without, and with the plugin in charge "
        f"against {stock[0]}, the best of {', '.join(stock)}; {MACHINES[kind].model} shape",
        value=value | count,
        unit={OTHERS: "share of the makespan"} | dict.fromkeys(count, "count"),
        target="whole intervals: watching costs at most 0.5 %, in charge at least 99 % of the goodput of the "
        "best static K; the plugin never stopped",
        met=kept and not stopped,
        how="measured: servers side by side, asked one at a time in turns whose order rotates, makespans of "
        f"the same rounds compared; mean of logs and Student's 95 % interval; of {len(counted)} rounds; the "
        "best static K is chosen on the same rounds",
        measured_on=f"{about.device}, vLLM {about.engine_version}",
        command="python -m evidence.serve_bench DEVICE OUT && python -m evidence.plugin_claims serve OUT",
        raw=write_raw(f"{name}.points.jsonl", [msgspec.to_builtins(each) for each in counted]),
    )


def rounded(figure: tuple[float, float, float]) -> Figure:
    """Return a share and the ends of its interval to the hundredth of a per cent."""
    value, low, high = figure
    return round(value, 4), round(low, 4), round(high, 4)


def train(python: str, model: Path, mode: str, out: Path) -> list[str]:
    """Train in one mode, unless its log is there; returns a digest of the tokens of each generation."""
    log = out / f"{mode}.log"
    if not log.is_file():
        log.write_text(_trained(python, model, mode, out))
    return re.findall(r"^tokens (\w+)", log.read_text(), re.MULTILINE)


def _trained(python: str, model: Path, mode: str, out: Path) -> str:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("TLT_PLUGIN", "PYTHONPATH")
    }
    if mode != MODES[0]:
        settings = (EXAMPLE / f"{mode}.toml").read_text(encoding="utf-8")
        path = out / f"{mode}.toml"
        path.write_text(re.sub(r"^out = .*$", f'out = "trl-{mode}"', settings, flags=re.MULTILINE))
        environment["TLT_PLUGIN"] = str(path)
    done = subprocess.run(
        [python, str(EXAMPLE / "grpo_cpu.py"), str(model), *(["greedy"] if mode in GREEDY else [])],
        cwd=out, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{mode}: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout + done.stderr


def trl(python: str, model: Path, out: Path) -> None:
    """Train in each mode, read the run folders, and write what was found."""
    out.mkdir(parents=True, exist_ok=True)
    tokens = {mode: train(python, model.resolve(), mode, out) for mode in MODES}
    value: dict[str, Figure] = {
        "generations": float(len(tokens["alone"])),
        "of them alike when watched": float(
            sum(a == b for a, b in zip(tokens["alone"], tokens["watch"], strict=True))
        ),
    }
    alike = True
    for mode in MODES[1:]:
        folder = out / f"trl-{mode}"
        tlt("real", "collect", str(folder))
        tlt("report", str(folder))
        subprocess.run(
            [sys.executable, "-m", "tlt", "trace", "doctor", str(folder)], check=False, cwd=PROJECT
        )
        alike = alike and replay_decisions(folder).difference is None
        tlt("sim", "counterfactual", str(folder), *ANSWER, "--out", str(out / f"answer-{mode}"))
        value[f"{mode}: rollouts in its run folder"] = float(RunFolder(folder).summary().steps)
    steps = decode_steps(out / "trl-control")
    right = (steps["k"] == steps["batch"].map(lambda batch: TABLE.get(batch, 0))).sum()
    value["control: engine steps that decode"] = float(len(steps))
    value["control: of them with the K of the table"] = float(right)
    value["control: different K"] = float(steps["k"].nunique())
    value["control: drafts verified"] = float(steps["drafted_tokens"].sum())
    value["advice given"] = float(sum(len(log.advice) for log in read_engines(out / "trl-advise")))
    write(
        "plugin_trl",
        claim="TRL's GRPO, unmodified, three steps on a CPU: watched, advised and controlled by the plugin",
        value=value,
        unit={OTHERS: "count"},
        target="watched: the same tokens; in charge: K by batch; run folders that all reports read and that "
        "decide again byte for byte",
        met=tokens["alone"] == tokens["watch"] and right == len(steps) and steps["k"].nunique() > 1 and alike,
        how="measured: TRL and vLLM in one process, digests of all tokens of greedy runs; the folders were "
        f"read by report, doctor, decisions ({'identical' if alike else 'DIFFERENT'}) and counterfactual",
        measured_on=f"{device()}, vLLM 0.32.0 for CPU, TRL {version_of(python, 'trl')}",
        command="python -m evidence.plugin_claims trl PYTHON MODEL OUT",
    )


def decode_steps(folder: Path) -> pd.DataFrame:
    """Return the engine steps of a run folder that had no prompt."""
    steps = read_engine_steps(folder)
    if steps is None:
        raise SystemExit(f"{folder} has no engine steps")
    return steps[steps["prompt_tokens"] == 0]


def version_of(python: str, package: str) -> str:
    """Return the version of a package in another environment."""
    code = f"import importlib.metadata as m, json; print(json.dumps(m.version({package!r})))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return str(json.loads(done.stdout))


if __name__ == "__main__":
    if sys.argv[1] in ("versions", "faults", "serve"):
        {"versions": versions, "faults": faults, "serve": serve}[sys.argv[1]](Path(sys.argv[2]))
    else:
        trl(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
