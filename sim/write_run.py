"""Runs a simulation into its run folder, and says in its summary what the figures rest on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tlt.sim.acceptance.prior import PRIOR
from tlt.sim.drift import load_drift
from tlt.sim.model.cluster import Cluster
from tlt.sim.model.phases import given_on_trainers
from tlt.sim.model.transports import sync_s, words
from tlt.sim.regimes import held_badly, never_held
from tlt.sim.simulation import Simulation, drafts_trees, other_drafter
from tlt.sim.steptimes.parallel import Parallel
from tlt.sim.steptimes.roofline import drafter_words
from tlt.sim.workload import describe_lengths
from tlt.traces.catalogue.models import canonical
from tlt.traces.catalogue.shape import BF16_BYTES
from tlt.traces.runs.runfolder import Summary, write_json
from tlt.version import VERSION
from tltsched.draft_config import OFF

TOLD_CUT = 0.01  # of the responses

MOST_RECORDED = 20_000  # responses of a run that is recorded unasked


def run_into(
    simulation: Simulation, folder: Path, label: str, progress: Callable[[int], None] | None = None
) -> Summary:
    """Simulate and write the run folder (tlt.traces.runs.runfolder); returns its summary."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "resolved_config.json", simulation.config)
    write_json(folder / "scheduler.json", simulation.setup)
    outcome = simulation.assembly().run_into(
        folder,
        simulation.step_requests(),
        lambda cluster: summary_of(simulation, label, cluster),
        records=_records(simulation),
        acceptance=simulation.config.run.acceptance,
        done=progress or (lambda _: None),
    )
    return outcome.summary


def _records(simulation: Simulation) -> bool:
    """Return whether the run is recorded: as set, else unless it is large."""
    asked = simulation.config.run.records
    return len(simulation.trace.rows) <= MOST_RECORDED if asked is None else asked


def summary_of(simulation: Simulation, label: str, cluster: Cluster) -> Summary:
    """Return the summary of a finished run; raises InputError if what it cost is not known."""
    simulation.check_graphs(cluster)
    config = simulation.config
    return Summary(
        kind="simulated",
        name=config.run.name,
        policy=label,
        model=config.hardware.model,
        gpu=config.hardware.gpu,
        workers=config.workers,
        gpus_per_worker=config.hardware.parallel.gpus,
        steps=len(cluster.log.step_rows),
        wall_s=float(cluster.env.now),
        response_tokens=sum(int(row["response_tokens"]) for row in cluster.log.schedule_rows),
        cost_source=cost_source(simulation),
        lengths_source=describe_lengths(simulation.trace),
        acceptance_source=simulation.law.source if simulation.drafts else "not used",
        seed=config.run.seed,
        tool_version=VERSION,
        preemptions=cluster.log.preemptions,
        warnings=warnings_of(simulation, cluster),
    )


def cost_source(simulation: Simulation) -> str:
    """Return one line that says what the step times rest on."""
    hardware, scale = simulation.config.hardware, simulation.config.cost.scale
    scaled = "" if scale == 1 else f"; all step times x {scale:.4g}, fitted to a log"
    known = simulation.config.cost.known
    if known.plain_step_s is not None:
        drafting = (
            "" if known.draft_step_s is None else f" and {known.draft_step_s * 1e3:g} ms at {known.draft}"
        )
        scaled += f"; pinned to steps that you timed: {known.plain_step_s * 1e3:g} ms plain{drafting}"
    if simulation.calibration is not None:
        return simulation.calibration.describe() + scaled
    return f"assumed: roofline of {hardware.model} on {hardware.parallel.count()} x {hardware.gpu}{scaled}"


def warnings_of(simulation: Simulation, cluster: Cluster) -> tuple[str, ...]:
    """Return sentences about everything that lies outside what was measured or published."""
    warnings = [*_calibration_warnings(simulation), *_memory_warnings(simulation)]
    ranges = simulation.calibration.ranges if simulation.calibration else None
    if ranges and cluster.log.largest_draft_batch > ranges.draft_batch[1]:
        warnings.append(
            f"drafting reaches batches of {cluster.log.largest_draft_batch}; "
            f"the calibration of drafting ends at {ranges.draft_batch[1]}"
        )
    outside = [
        str(draft_config)
        for draft_config in simulation.policy.draft_configs
        if draft_config != OFF and simulation.law.extrapolates(draft_config)
    ]
    if outside:
        warnings.append(f"acceptance of {', '.join(outside)} is extrapolated beyond its source")
    if simulation.drafts and simulation.config.acceptance.assumes_differences:
        warnings.append(
            f"how requests differ in acceptance is assumed (spread {PRIOR.request_spread:g}, drawn into "
            "intervals): `tlt sim fit-acceptance` measures it on a run"
        )
    engine = simulation.config.engine
    if engine.graph_max_requests and not simulation.coefficients.eager_s:
        warnings.append(
            f"a step without a CUDA graph above {engine.graph_max_requests} requests is assumed to cost "
            f"{engine.eager_s_per_layer * 1e3:g} ms a layer more"
        )
    rows, workload = simulation.trace.rows, simulation.config.workload
    cut = float(rows["truncated"].mean()) if len(rows) and not workload.replay_steps else 0.0
    if cut >= TOLD_CUT:
        warnings.append(
            f"{cut:.1%} of the responses are cut at {workload.max_response_tokens:,} tokens "
            "(workload.max_response_tokens)"
        )
    drafter = simulation.config.drafter
    if drafter.drift:
        warnings.append(load_drift(drafter.drift).describe())
    elif drafter.drift_per_update:
        warnings.append("drafter drift and recovery are assumed")
    elif simulation.config.cluster.spot.enabled:
        warnings.append(
            "no drift of the drafter is assumed (drafter.drift_per_update), so that training it gains nothing"
        )
    if simulation.unscaled() is not None:
        warnings.append(_trainer_warning(simulation))
    warnings += _sync_warnings(simulation)
    return (*warnings, *_cluster_warnings(simulation, cluster))


def _cluster_warnings(simulation: Simulation, cluster: Cluster) -> list[str]:
    warnings = []
    if simulation.config.run.records is None and not _records(simulation):
        warnings.append(
            f"{len(simulation.trace.rows):,} responses are more than the {MOST_RECORDED:,} whose events are "
            "recorded unasked: acceptance by batch is not told (run.records = true records them)"
        )
    if cluster.stream.repeated:
        times = cluster.stream.repeated
        often = "once" if times == 1 else f"{times} times"
        warnings.append(f"the schedule used up the prompts of the trace and began it anew {often}")
    if cluster.log.preemptions:
        count = cluster.log.preemptions
        warnings.append(f"the KV cache overflowed: {count} requests were preempted and redone")
    warnings += [f"{words} (docs/regimes.md)" for words in held_badly(simulation)]
    unheld = never_held(simulation, cluster)
    return [*warnings, *(f"no live engine was held against {words} (docs/regimes.md)" for words in unheld)]


def _memory_warnings(simulation: Simulation) -> list[str]:
    memory = simulation.training_memory
    if memory is None or not memory.offloads:
        return []
    return [
        f"the update fits only with its optimizer states in the host's memory ({memory.text()}), and its "
        "seconds leave out moving them: phases.policy_update_s states yours"
    ]


def _trainer_warning(simulation: Simulation) -> str:
    phases, all_gpus, some = (
        simulation.config.phases,
        simulation.config.hardware.gpus,
        simulation.training_gpus,
    )
    longer = (all_gpus / some) ** phases.trainer_scaling
    given = " and ".join(given_on_trainers(phases))
    return (
        f"given seconds of {given} are of {all_gpus} GPUs and {some} train: they take "
        f"{longer:.3g} times as long (phases.trainer_scaling {phases.trainer_scaling:g}); a "
        "comparison's intervals reach to seconds that do not grow"
    )


def _sync_warnings(simulation: Simulation) -> list[str]:
    """Say what the seconds of a weight sync rest on, where they are not given and rollouts wait for them."""
    phases, cluster = simulation.config.phases, simulation.config.cluster
    given = phases.weight_sync_s is not None or "weight_sync" in phases.by_step_s
    named = phases.sync_transport != "assumed" or phases.sync_bytes_per_s is not None
    overlaps = cluster.schedule_spec().overlaps
    if given or "weight_sync" not in cluster.phases or not (overlaps or named):
        return []
    weight_bytes = simulation.shape.parameters() * BF16_BYTES
    seconds = sync_s(phases.sync_transport, weight_bytes, phases.sync_bytes_per_s)
    told = words(phases.sync_transport, phases.sync_bytes_per_s)
    return [f"a weight sync takes {seconds:.3g} s: {weight_bytes / 1e9:.3g} GB at {told}"]


def _calibration_warnings(simulation: Simulation) -> list[str]:
    calibration, hardware = simulation.calibration, simulation.config.hardware
    other = other_drafter(simulation.config)
    own = [f"assumed: {other.words()} (drafter.kind)"] if other and simulation.drafts else []
    if calibration is None:
        told = [*own, "step times are assumed: no calibration of this model and GPU was given"]
        if simulation.drafts and simulation.config.drafter.kind == "head":
            config = simulation.config
            told.append(f"assumed: {drafter_words(config.cost.roofline, drafts_trees(config))}")
        return told
    warnings = [
        *own,
        *(f"{calibration.name}: {note}" for note in calibration.notes if note.startswith("assumed")),
    ]
    if (canonical(calibration.model), Parallel(tp=calibration.tp)) != (hardware.model, hardware.parallel):
        warnings.append(
            f"the calibration is of {calibration.model} with TP {calibration.tp}, "
            f"not of {hardware.model} with {hardware.parallel.words()}"
        )
    if not calibration.is_on(hardware.gpu):
        warnings.append(f"the calibration is of {calibration.device}, not of {hardware.gpu}")
    ranges = calibration.ranges
    rows = simulation.trace.rows
    batch = -(-len(rows) // len(rows["step"].unique()) // simulation.config.workers)
    batch = min(batch, simulation.config.engine.max_running)
    if batch > ranges.batch[1]:
        warnings.append(f"batches reach {batch}; the calibration ends at {ranges.batch[1]}")
    longest = int((rows["prompt_tokens"] + rows["response_tokens"]).max())
    if longest > ranges.context_tokens[1] * 1.01:
        warnings.append(
            f"contexts reach {longest:,} tokens; the calibration ends at {ranges.context_tokens[1]:,.0f} "
            "and is extended along a straight line"
        )
    depths = [draft_config.depth for draft_config in simulation.policy.draft_configs if draft_config.depth]
    if depths and not (ranges.depth[0] <= min(depths) and max(depths) <= ranges.depth[1]):
        warnings.append(f"draft depths {min(depths)}-{max(depths)} leave the calibrated {ranges.depth}")
    return warnings
