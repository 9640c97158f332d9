"""`tlt sim counterfactual`: what other policies and schedules would have done with an observed run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tlt.commands.follow import follow_option, followed
from tlt.commands.options import (
    EXISTING_FILE,
    cap_option,
    columns_option,
    configured,
    draws_option,
    force_option,
    json_option,
    names_of,
    out_folder,
    policies_option,
    report_option,
    responses_option,
    tokenizer_option,
)
from tlt.commands.output import present
from tlt.commands.progress import progress, stage


@click.command()
@click.argument("run", type=click.Path(exists=True, path_type=Path))
@configured("TOML file; `tlt sim fields` lists what it may hold.")
@click.option("--phases", type=EXISTING_FILE, help="Phase times that `tlt trace import --phases` wrote.")
@click.option(
    "--observed", metavar="POLICY", help="What the run was under; none, unless a run folder says else."
)
@policies_option(
    "What to simulate on the same lengths beside the observed policy. Default: a few of each kind.",
    "POLICY[@SCHEDULE],...",
)
@click.option("--gpus", type=click.IntRange(1), help="GPUs of the run (hardware.gpus).")
@click.option("--tp", type=click.IntRange(1), help="GPUs of one rollout worker (hardware.tp).")
@click.option("--price", type=click.FloatRange(0.0), metavar="USD", help="Of a GPU-hour.")
@cap_option("Longest response that was allowed, for files that do not say.")
@responses_option
@columns_option
@tokenizer_option
@draws_option(99, "Draws of the step times within their error; 0: none.")
@follow_option
@out_folder()
@force_option
@json_option
@report_option
def counterfactual(run: Path, out: Path, with_report: bool, as_json: bool, **given: Any) -> None:
    """Reproduce RUN with the model, then say what other policies and schedules would have taken.

    RUN is a trace of `tlt trace import`, a file or folder that an RL framework wrote, or a run folder or
    comparison of this project, and may go on: a last step that is not whole is left out. The error of the
    reproduction comes first.
    """
    from tlt.sim.counterfactual.answer import counterfactual as answer
    from tlt.sim.counterfactual.observed_run import observe
    from tlt.sim.counterfactual.settings import replay_of
    from tlt.traces.common.settings import merge, settings_of
    from tlt.traces.importers.reading.items import Options
    from tlt.traces.importers.reading.texts import tokeniser
    from tlt.traces.results.counterfactual import OBSERVED_TRACE
    from tlt.traces.results.study import claim

    hardware = {name: given[name] for name in ("gpus", "tp") if given[name] is not None}
    settings = merge(
        settings_of(given["config"], given["assignments"]), {"hardware": hardware} if hardware else {}
    )
    counted = tokeniser(given["tokenizer"]) if given["tokenizer"] else None
    options = Options(given["cap"], tokenise=counted, responses=given["responses"], columns=given["columns"])

    def read() -> None:
        with progress(f"reading {run.name}"):
            observed = observe(run, given["phases"], options)
            replay = replay_of(
                observed, settings, out / OBSERVED_TRACE, names_of(given["policies"]), given["observed"]
            )
        asked = {"run": str(run.resolve()), "observed": given["observed"], "price": given["price"]}
        claim(out, "counterfactual", settings | asked, force=given["force"])
        with stage("simulating", replay.units) as advance:
            answer(replay, out, given["draws"], given["price"], lambda policy, _: advance(policy))
        present(out, with_report, as_json)

    followed([run], read, given["follow"])
