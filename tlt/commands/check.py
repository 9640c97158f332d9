"""`tlt check`: whether this installation can do what it is for, and what is missing for the rest."""

from __future__ import annotations

import platform
import sys
from importlib import metadata, util

import click

from tlt.commands.options import json_option
from tlt.commands.output import echo_json
from tlt.version import VERSION

NEEDED = ("simpy", "numpy", "scipy", "pandas", "pyarrow", "matplotlib", "jinja2", "click", "msgspec", "rich")
EXTRAS = {
    "torch": "live engine (tlt real)",
    "vllm": "live engine (tlt real), tlt real check-export",
    "tokenizers": "logs that hold texts and no lengths (--tokenizer)",
    "ray": "--executor ray",
}
CHECK_FAILED = 1


@click.command()
@json_option
@click.pass_context
def check(ctx: click.Context, as_json: bool) -> None:
    """Check the installation: Python, packages, shipped data, a small simulation, what is optional.

    Exits with 1 if something that is needed does not work.
    """
    rows = [("python", sys.version_info >= (3, 11), platform.python_version(), True)]
    rows += [(name, *_package(name), True) for name in NEEDED]
    rows += [("shipped data", *_data(), True), ("a small simulation", *_simulation(), True)]
    rows += [(name, *_package(name), False) for name in EXTRAS]
    failed = [name for name, works, _, needed in rows if needed and not works]
    if as_json:
        echo_json(
            {"tlt": VERSION, "works": not failed,
             "checks": [{"name": name, "works": works, "found": found, "needed": needed}
                        for name, works, found, needed in rows]}
        )  # fmt: skip
    else:
        click.echo(f"tlt {VERSION}")
        for name, works, found, needed in rows:
            mark = "ok" if works else ("FAILED" if needed else "not here")
            use = "" if needed else f"  (for {EXTRAS[name]})"
            click.echo(f"  {mark:8} {name}: {found}{use}")
        click.echo("all that is needed works" if not failed else f"does not work: {', '.join(failed)}")
    ctx.exit(CHECK_FAILED if failed else 0)


def _package(name: str) -> tuple[bool, str]:
    if util.find_spec(name) is None:
        return False, "not installed"
    try:
        return True, metadata.version(name)
    except metadata.PackageNotFoundError:
        return True, "installed, version unknown"


def _data() -> tuple[bool, str]:
    from tlt.sim.steptimes.calibration import load, shipped_names

    try:
        names = shipped_names()
        for name in names:
            load(name)
    except Exception as error:  # whatever is wrong is what is asked for
        return False, f"{type(error).__name__}: {error}"
    return bool(names), f"{len(names)} calibrations read"


def _simulation() -> tuple[bool, str]:
    from tlt.sim.config import resolve
    from tlt.sim.simulation import Simulation
    from tlt.sim.workload import load_workload

    tiny = {
        "hardware": {"gpus": 2, "tp": 1, "model": "Qwen2.5-7B"},
        "workload": {"steps": 1, "prompts_per_step": 2, "samples_per_prompt": 2, "max_response_tokens": 256},
    }
    try:
        config = resolve(tiny, "goodput")
        cluster = Simulation(config, load_workload(config.workload, config.run.seed)).run()
    except Exception as error:  # whatever is wrong is what is asked for
        return False, f"{type(error).__name__}: {error}"
    return True, f"one step of 4 responses in {cluster.env.now:.3g} s of simulated time"
