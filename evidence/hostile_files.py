"""Hostile settings, step times, exports and damaged folders: `python -m evidence.hostile_files [SHARE]`

Five kinds of input, changed by seeded mutations, each in this process:

- 2,000 configurations with one to three fields near their defaults, absurd or of another kind, half of them
  under a schedule with a parameter like that: simulated
- 500 files of sessions of turns with a value changed or a byte damaged: simulated
- 1,000 calibrations (shipped ones with a value, a list or a byte changed): read, and a step simulated
- 500 exported tables: read with the engine's own parser
- 1,000 copies of a result folder with one file damaged, most by a single bit: read, decisions replayed

Counted are those that worked, those refused by name, and all else, of which there must be none: other errors,
warnings, more than 30 s, results that cannot be (times that are not finite or beyond a century, counts below
0, GPU time that does not add up), and a damaged folder that reads otherwise than the whole one. SHARE (1)
makes fewer of each. Writes hostile_files.json.
"""

from __future__ import annotations

import copy
import hashlib
import math
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pandas as pd

from evidence.recording import OTHERS, device, write
from tlt.analysis.crosscheck.decisions import replay_decisions
from tlt.analysis.load import load_runs
from tlt.commands.failures import outside
from tlt.realrun.engine.check_export import check_export
from tlt.realrun.engine.speculation_table import parse_speculation
from tlt.realrun.engine.vllm_compat import require_version
from tlt.sim import studies
from tlt.sim.config import Config, resolve
from tlt.sim.policy_set import policy_set
from tlt.sim.simulation import Simulation
from tlt.sim.steptimes.calibration import SHIPPED
from tlt.sim.workload import load_workload
from tlt.traces.common.manifest import LEFT_OUT
from tlt.traces.common.settings import fields, settings_of
from tltsched.errors import InputError
from tltsched.schedules import PRESETS as SCHEDULES
from tltsched.sessions.routing import RULE_NAMES

SEED, LIMIT_S, CENTURY_S, SPACE_BYTES = 21, 30, 3.2e9, 6 << 30
COUNTS = {"configurations": 2_000, "sessions": 500, "calibrations": 1_000, "exports": 500, "folders": 1_000}
LONG_STEPS, LONG_RESPONSES = 100, 2_000
SMALL = (
    "hardware.gpus=8", "workload.steps=1", "workload.prompts_per_step=3", "workload.samples_per_prompt=2",
    "workload.max_response_tokens=150", "policy='static:2'",
)  # fmt: skip
ARMS, ROUTINGS = ("none", "static:2", "tlt_chains", "goodput:off+2"), sorted(RULE_NAMES)
NUMBERS = (
    "0", "-1", "1", "2", "3", "0.5", "1.5", "1e-300", "1e-9", "1e9", "1e300", "-1e300", "inf", "-inf", "nan",
    "1e30", "1000000000", "4000000", "9223372036854775807", "9223372036854775808", "1" * 5000, "0.1",
    "7", "64",
)  # fmt: skip
OTHER_KINDS = (
    "true", "''", "'x'", "'../../etc/passwd'", "[]", "[1]", "[0.9,0.5]", "[1e300]", "{}", "{a=1}",
    "2026-01-01",
    "'\\u001b]0;x\\u0007'", "'none'", "'/dev/null'", "[[1,2]]", "'static:999999999'",
    "'tlt@divided'", "[" * 2000,
)  # fmt: skip
JSON_VALUES: tuple[Any, ...] = (
    0, -1, 1, 1e-300, 1e30, 1e300, -1e300, 2**31, 2**63, 2**70, 0.5, "", "x", None, True, [], [1], [1, 1],
    [3, 2, 1], {}, {"a": 1}, [0.1] * 100,
)  # fmt: skip


class NonsenseError(Exception):
    """A result that cannot be."""


def require(condition: bool, what: str) -> None:
    """Raise NonsenseError unless a result can be."""
    if not condition:
        raise NonsenseError(what)


def simulate(config: Config) -> None:
    """Run a simulation and demand results that can be."""
    cluster = Simulation(config, load_workload(config.workload, config.run.seed)).run()
    responses, intervals, steps = cluster.tables()
    for table in (responses, intervals, steps):
        numbers = table.select_dtypes("number")
        require(bool(numbers.map(math.isfinite).to_numpy().all()), "a number that is not finite")
    times = steps[["start_s", "rollout_end_s", "end_s"]].to_numpy()
    require(bool((times[:, :-1] <= times[:, 1:] + 1e-9).all()), "times out of order")
    require(0 < float(cluster.env.now) < CENTURY_S, f"a run of {cluster.env.now:.3g} s")
    counts = steps[["request_steps", "accepted_tokens", "trained_tokens"]].to_numpy()
    require(bool((counts >= 0).all()), "a count below 0")
    booked_s = float((intervals["end_s"] - intervals["start_s"]).sum())
    workers = int(intervals["worker"].nunique())
    require(math.isclose(booked_s, workers * cluster.env.now, rel_tol=1e-6), "GPU time does not add up")
    require(bool((responses["finish_s"] >= responses["start_s"]).all()), "a response ends before it begins")


def configuration(rng: Random, folder: Path) -> None:
    """Simulate one spoiled configuration."""
    del folder
    rows = fields(Config)
    assignments = [*SMALL, f"policy='{rng.choice(ARMS)}'", f"run.mode='{rng.choice(('jump', 'exact'))}'"]
    if rng.random() < 0.5:
        assignments.append(f"cluster.schedule={_schedule(rng)}")
    for name, default, _ in rng.sample(rows, rng.choice((1, 1, 2, 3))):
        assignments.append(f"{name}={_setting(default, rng)}")
    config = resolve(settings_of(None, tuple(assignments)))
    work = config.workload
    if work.steps <= LONG_STEPS and work.prompts_per_step * work.samples_per_prompt <= LONG_RESPONSES:
        simulate(config)  # else it is right and takes long


def _schedule(rng: Random) -> str:
    """Return a schedule as a table, with one of its parameters spoiled if it has any."""
    spec = msgspec.to_builtins(SCHEDULES[rng.choice(sorted(SCHEDULES))])
    inside = f"kind='{spec.pop('kind')}'"
    if spec:
        name = rng.choice(sorted(spec))
        inside += f",{name}={_setting(msgspec.json.encode(spec[name]).decode(), rng)}"
    return f"{{{inside}}}"


def sessions(rng: Random, folder: Path) -> None:
    """Simulate sessions out of a spoiled file."""
    rows: list[Any] = [
        {"prompt_id": session // 2, "sample": session % 2, "turn": turn, "input_tokens": rng.randrange(1, 90),
         "response_tokens": rng.randrange(1, 60), "wait_s": rng.choice((0.0, 0.5, 30.0)), "end": "tool"}
        for session in range(rng.choice((2, 4, 6))) for turn in range(rng.randrange(1, 4))
    ]  # fmt: skip
    if rng.random() < 0.8:
        _spoil(rows, rng)
    content = b"".join(_big(row) + b"\n" for row in rows)
    path = folder / "sessions.jsonl"
    path.write_bytes(_damaged(content, rng) if rng.random() < 0.3 else content)
    schedule = rng.choice(("synchronous", "oversample_partial", "oversample_abort", "bounded_async"))
    chosen = (f"workload.sessions='{path}'", f"cluster.schedule='{schedule}'", f"policy='{rng.choice(ARMS)}'",
              f"run.mode='{rng.choice(('jump', 'exact'))}'", f"cluster.routing='{rng.choice(ROUTINGS)}'",
              f"engine.tool_wait_kv='{rng.choice(('keep', 'drop'))}'")  # fmt: skip
    simulate(resolve(settings_of(None, (*SMALL[:2], *chosen))))


def _setting(default: str, rng: Random) -> str:
    """Return a value for a setting: near its default, far from it, absurd, or of another kind."""
    value = msgspec.json.decode(default)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and rng.random() < 0.75:
        moved = (value or 1) * 10 ** rng.gauss(0, rng.choice((0.2, 1.5)))
        return str(round(moved) if isinstance(value, int) else moved)
    return rng.choice(NUMBERS if rng.random() < 0.6 else OTHER_KINDS)


def calibration(rng: Random, folder: Path) -> None:
    """Read one spoiled calibration and simulate under it."""
    content = rng.choice(sorted(SHIPPED.glob("*.json"))).read_bytes()
    if rng.random() < 0.3:
        content = _damaged(content, rng)
    else:
        value = msgspec.json.decode(content)
        _spoil(value, rng)
        content = msgspec.json.encode(value)
    path = folder / "calibration.json"
    path.write_bytes(content)
    simulate(
        resolve(
            settings_of(
                None, (*SMALL, f"cost.source='{path}'", f"policy='{rng.choice(('none', 'static:2'))}'")
            )
        )
    )


def _spoil(value: Any, rng: Random) -> None:
    """Change one thing somewhere in decoded JSON."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = rng.choice(keys)
        inner = value[key]
        if isinstance(inner, (dict, list)) and inner and rng.random() < 0.8:
            value = inner
            continue
        match rng.randrange(4):
            case 0:
                value[key] = copy.deepcopy(rng.choice(JSON_VALUES))
            case 1 if isinstance(value, list):
                value.append(copy.deepcopy(inner))
            case 2:
                del value[key]
            case _ if isinstance(inner, (int, float)) and not isinstance(inner, bool):
                value[key] = rng.choice((-inner, inner * 1e6, inner * 1e-6, inner + 1))
            case _:
                value[key] = copy.deepcopy(rng.choice(JSON_VALUES))
        return


def _damaged(content: bytes, rng: Random) -> bytes:
    """Return content with a bit flipped, cut, emptied, grown, or with bytes of another kind."""
    place = rng.randrange(max(len(content), 1))
    match rng.randrange(8):
        case 0:
            return content[:place]
        case 1:
            return rng.choice((b"", b"\0" * len(content), content + b"x", content[place:] + content[:place]))
        case _:
            flipped = bytearray(content)
            if flipped:
                flipped[place] ^= 1 << rng.randrange(8)
            return bytes(flipped)


def export(rng: Random, folder: Path) -> None:
    """Read one spoiled export."""
    edges = sorted(rng.sample(range(2, 300), rng.randrange(1, 6)))
    table: list[Any] = [
        [low, high - 1, rng.randrange(0, 6)] for low, high in zip([1, *edges], [*edges, 400], strict=True)
    ]
    settings: dict[str, Any] = {"method": "eagle3", "model": "x", "num_speculative_tokens": 5,
                                "num_speculative_tokens_per_batch_size": table}  # fmt: skip
    other = rng.randrange(4)
    if other == 0:  # as SGLang has it
        settings = {str(low): {"candidate_steps": [k]} for low, _, k in table} | {"window": 3}
        more = rng.choice(("100000000", "9" * 5000, "-3", "x"))
        settings |= {more: {"candidate_steps": [1]}} if rng.random() < 0.3 else {}
    elif other == 1:  # as TensorRT-LLM has it
        lengths = {str(high): k for _, high, k in table}
        lengths |= {rng.choice(("100000000", "9" * 30, "-3")): 1} if rng.random() < 0.3 else {}
        settings = {"speculative_config": {"max_draft_len": table[0][2], "draft_len_schedule": lengths}}
    if rng.random() < 0.7:
        _spoil(settings, rng)
    if rng.random() < 0.3:
        row = table[rng.randrange(len(table))] if table else [0]
        if isinstance(row, list) and row:
            row[rng.randrange(len(row))] = rng.choice((100_000_000, 2**70, -5, 0, 65_536, 1e9, "3", None))
    content = _big(settings)
    path = folder / "export.json"
    path.write_bytes(_damaged(content, rng) if rng.random() < 0.2 else content)
    check_export(path, rng.choice((None, None, 256)))


def exports() -> Callable[[Random, Path], None]:
    """Return what spoils an export; that the parser of the engine loads slowly counts for no case."""
    with suppress(InputError, ValueError):
        require_version()
        parse_speculation({}, 1)
    return export


def _big(value: Any) -> bytes:
    """Return JSON with integers of any size, which msgspec does not write."""
    import json

    return json.dumps(value).encode()


class Whole:
    """A result folder and all that reading it gives."""

    def __init__(self, folder: Path) -> None:
        settings = settings_of(None, (*SMALL[:-1], "workload.steps=2"))
        studies.recommend(policy_set(settings, ["none", "static:2", "tlt_chains"]), folder, 5, studies.silent)
        self.folder = folder
        self.files = sorted(
            path.relative_to(folder) for path in folder.rglob("*")
            if path.is_file() and path.name not in LEFT_OUT and path.suffix != ".txt"
        )  # fmt: skip
        self.digest = digest_of(folder)


def digest_of(folder: Path) -> str:
    """Return the hash of everything that reading a result folder gives."""
    found = load_runs(folder)
    digest = hashlib.sha256(repr((found.name, found.recommendation, found.bounds)).encode())
    for run in found.runs:
        digest.update(repr((run.policy, run.summary, run.config_text, run.schedule)).encode())
        for table in (run.responses, run.intervals, run.steps, run.acceptance):
            if table is not None:
                digest.update(pd.util.hash_pandas_object(table.astype(str)).to_numpy().tobytes())
        replayed = replay_decisions(run.path)
        require(replayed.difference is None, "another decision")
    return digest.hexdigest()


def damaged_folder(whole: Whole) -> Callable[[Random, Path], None]:
    """Return what damages a copy of a folder and reads it."""

    def damage(rng: Random, folder: Path) -> None:
        place = folder / "copy"
        shutil.copytree(whole.folder, place)
        path = place / rng.choice(whole.files)
        fate = rng.random()
        if fate < 0.08:
            path.unlink()
        elif fate < 0.14:
            shutil.copy(place / rng.choice(whole.files), path)
        else:
            path.write_bytes(_damaged(path.read_bytes(), rng))
        require(digest_of(place) == whole.digest, f"{path.name} reads otherwise")

    return damage


def outcome(case: Callable[[Random, Path], None], rng: Random, top: Path) -> str:
    """Try one case; returns what came of it."""
    folder = top / "case"
    folder.mkdir()
    signal.alarm(LIMIT_S)
    try:
        case(rng, folder)
    except InputError as error:
        return "refused" if str(error).isprintable() else "fault: an error that could act on a terminal"
    except OSError as error:  # such as a name of 2,000 characters
        return "refused" if outside(error) else f"fault: {error}"
    except NonsenseError as error:
        return f"fault: {error}"
    except BaseException:
        return f"fault: {traceback.format_exc(limit=-3)}"
    else:
        return "worked"
    finally:
        signal.alarm(0)
        shutil.rmtree(folder)


def out_of_time(*_: object) -> None:
    """Turn the alarm into a fault."""
    raise SystemError(f"more than {LIMIT_S} s")


def fire(kind: str, count: int, seed: int, top: Path) -> Counter[str]:
    """Try so many cases of a kind; returns how many worked, were refused, or are faults."""
    cases: dict[str, Callable[[], Callable[[Random, Path], None]]] = {
        "configurations": lambda: configuration,
        "sessions": lambda: sessions,
        "calibrations": lambda: calibration,
        "exports": exports,
        "folders": lambda: damaged_folder(Whole(top / "whole")),
    }
    simulate(resolve(settings_of(None, SMALL)))  # compiles what is compiled once
    case, counts = cases[kind](), Counter[str]()
    for number in range(count):
        found = outcome(case, Random(f"{seed}/{kind}/{number}"), top)  # noqa: S311
        if found.startswith("fault"):
            print(f"{kind} {number}: {found}", file=sys.stderr, flush=True)
            found = "fault"
        counts[found] += 1
    return counts


def peak_mb() -> float:
    """Return the peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(share: float) -> None:
    """Fire everything and write the record."""
    resource.setrlimit(resource.RLIMIT_AS, (SPACE_BYTES, SPACE_BYTES))
    signal.signal(signal.SIGALRM, out_of_time)
    warnings.simplefilter("error")
    value: dict[str, float] = {}
    for kind, count in COUNTS.items():
        with tempfile.TemporaryDirectory() as top:
            counts = fire(kind, round(count * share), SEED, Path(top))
        print(kind, dict(counts), f"{peak_mb():.0f} MB", flush=True)
        value |= {f"{kind}: {name}": float(counts[name]) for name in ("worked", "refused", "fault")}
        value["peak memory"] = round(peak_mb())
    faults = sum(number for name, number in value.items() if name.endswith("fault"))
    write(
        "hostile_files",
        claim="Absurd settings, step times, exports and damaged result folders work or are refused by name",
        value=value,
        unit={OTHERS: "", "peak memory": "MB"},
        measured_on=device(),
        target="no traceback, warning or result that cannot be, at most 30 s each and 1 GB; a damaged folder "
        "is refused, or reads exactly as the whole one",
        met=not faults and value["peak memory"] <= 1024,
        how=f"measured, one process, seed {SEED}",
        command="python -m evidence.hostile_files",
    )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
