"""Makes an export of a configuration or of a simulated folder, and writes it with where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from tlt.sim.acceptance.prior import PRIOR
from tlt.sim.advise.best_draft import candidate_draft_configs
from tlt.sim.advise.export.formats import (
    BY_BATCH,
    CHECKED,
    NAMES_FROM,
    OFF_STATES,
    Export,
    Format,
    Target,
    to_sglang_flags,
)
from tlt.sim.advise.export.table import BatchTable, batch_table, static_draft_config
from tlt.sim.config import Config
from tlt.sim.simulation import Simulation
from tlt.sim.workload import describe_lengths, load_workload
from tlt.traces.common.regret import TIE
from tlt.traces.common.seeds import EXPORT, generator
from tlt.traces.lengths.files import read_trace
from tlt.traces.runs.runfolder import RunFolder, read_struct, write_json
from tlt.traces.sources import open_runs
from tlt.version import VERSION
from tltsched.draft_config import DraftConfig
from tltsched.errors import InputError
from tltsched.written.policy_name import policy_of

SUFFIX = ".provenance.json"


class Exported(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where an export comes from; written beside it as FILE.provenance.json."""

    format_version: int = 1
    file: str
    format: Format
    names_from: str
    checked_by_engine: str
    policy: str  # the same rule as `tlt` takes it for --policies
    step_times: str
    step_times_date: str  # "" for a roofline
    model: str
    gpu: str
    tp: int
    acceptance: str
    lengths: str
    seed: int
    table: BatchTable  # what the format rests on, best draft configuration by batch
    static_gain: float | None  # of one for all batches, over no speculation; None: a table
    warnings: tuple[str, ...]
    usage: str
    tool_version: str


def simulation_of(folder: Path) -> Simulation:
    """Return the simulation of a simulated run folder, or of the first run of a comparison.

    Raises InputError if the folder is neither, or was measured.
    """
    source = open_runs(folder)
    run, lengths = source.folders[0], source.path / "lengths.parquet"
    if RunFolder(run).summary().kind != "simulated":
        raise InputError(
            "run folder", str(folder), "one of a simulation", "give the configuration instead: --config FILE"
        )
    config = read_struct(run / "resolved_config.json", Config)
    known = lengths.is_file()
    return Simulation(
        config, read_trace(lengths) if known else load_workload(config.workload, config.run.seed)
    )


def export(
    simulation: Simulation,
    form: Format,
    draft_configs: Sequence[DraftConfig],
    tolerance: float,
    target: Target,
    out: Path,
) -> tuple[Export, Exported]:
    """Write the export to `out`, and its origin beside it; returns both. Raises InputError."""
    if not out.parent.is_dir():
        raise InputError("--out", str(out), "a file in a folder that exists", "choose another path")
    config = simulation.config
    rng = generator(config.run.seed, EXPORT)
    used = draft_configs or candidate_draft_configs(config)
    table = batch_table(simulation, used, OFF_STATES[form], tolerance, rng)
    policy, static_gain = table.policy, None
    if form == "sglang-flags":
        draft_config, static_gain = static_draft_config(simulation, used)
        made, policy = to_sglang_flags(draft_config, target), policy_of("static", [draft_config])
    else:
        made = BY_BATCH[form](table, target, str(out))
    calibration = simulation.calibration
    told = Exported(
        file=out.name,
        format=form,
        names_from=NAMES_FROM[form],
        checked_by_engine=CHECKED[form],
        policy=policy,
        step_times=calibration.describe() if calibration else f"assumed: roofline of {config.hardware.gpu}",
        step_times_date=calibration.date if calibration else "",
        model=config.hardware.model,
        gpu=config.hardware.gpu,
        tp=config.hardware.tp,
        acceptance=simulation.law.source,
        lengths=describe_lengths(simulation.trace),
        seed=config.run.seed,
        table=table,
        static_gain=static_gain,
        warnings=(*warnings_of(simulation, table), *_other_engine(simulation, form)),
        usage=made.usage,
        tool_version=VERSION,
    )
    out.write_text(made.text, encoding="utf-8")
    write_json(out.with_name(out.name + SUFFIX), told)
    return made, told


def _other_engine(simulation: Simulation, form: Format) -> tuple[str, ...]:
    """Say so where the step times are of an engine that was set up in another way than the file is used."""
    calibration = simulation.calibration
    if form not in ("vllm", "verl") or calibration is None or not calibration.engine.startswith("vLLM"):
        return ()
    if "CPU" in calibration.device or calibration.settings.startswith("stock"):
        return ()
    settings = calibration.settings or "settings that are not on record, as this project's replays have them"
    return (
        f"the step times are of an engine with {settings}, and the command starts a stock one: measure it "
        "with `tlt real calibrate --set engine.graphs=stock --set engine.prefix_caching=true`",
    )


def warnings_of(simulation: Simulation, table: BatchTable) -> tuple[str, ...]:
    """Return what must be known before the table is used."""
    rows = [row for each in table.ranges for row in each.rows]
    losing_much = [row.best for row in rows if (row.best.regret_high or 0.0) > TIE]
    most = max((best.regret_high or 0.0 for best in losing_much), default=0.0)
    outside = [row.best.requests for row in rows if row.best.extrapolated]
    unreached = [row.best.requests for row in rows if not row.reached]
    unsure = [row.best.requests for row in rows if row.draft_config != "off" and row.best.gain_low < 1]
    losing = [row.best.requests for row in rows if row.gain < 1]
    found = [
        (
            [best.requests for best in losing_much],
            f"by the error of the step times another draft configuration may be more than {TIE:.0%} faster, "
            f"up to {most:.1%} (upper end of 95 %), at batch {{}}",
        ),
        (unsure, "drafting may lose to an engine without speculation at batch {}"),
        (losing, "slower than an engine without speculation configured at batch {}: less so than any other"),
        (outside, "batch or context lies outside the calibrated points at batch {}"),
        (unreached, "the workload does not run so many requests at once; context assumed, at batch {}"),
    ]
    texts = [text.format(", ".join(map(str, batches))) for batches, text in found if batches]
    calibration, config = simulation.calibration, simulation.config
    if config.acceptance.assumes_differences:
        texts.append(
            f"how requests differ in acceptance is assumed (spread {PRIOR.request_spread:g}), which rows of "
            "small batches rest on: `tlt sim fit-acceptance` measures it on a run"
        )
    if calibration and calibration.model != config.hardware.model:
        texts.append(f"step times are of {calibration.model}, the settings say {config.hardware.model}")
    return tuple(texts)
