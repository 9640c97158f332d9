"""Which claims the page of cards shows, by subject, with headings; and the lines that README takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Decimal

from evidence.live_claims import RANKING
from evidence.recording import Evidence, value_of

WELL = "setup published well enough"
SUBJECTS: dict[str, dict[str, str]] = {
    "The simulator against live engines": {
        "crosscheck_h100": "A replay on two H100, predicted",
        "crosscheck_h200": "A replay with a queue on one H200, predicted",
        "prefill_beside_decode": "A prompt that joins a batch",
        "crosscheck_cpu": "A replay on two CPU workers, predicted",
        "counterfactual_h200": "What speculation would have gained, predicted from a run without it",
        "training_predicted": "A training run, its second half predicted from its first",
        "acceptance_predicted": "Its rollouts, as requests differ in acceptance",
        "vllm_bench": "vLLM's own benchmark, imported and simulated",
        "k0_tax": "What K = 0 costs on vLLM",
        "roofline_vs_measured": "How far an assumed step time may be off",
        "two_gpus": "An engine over two GPUs, measured",
        "two_gpus_drafting": "An engine over two GPUs that drafts, measured",
        "two_gpus_replay": "Rollouts over two GPUs, predicted without a measurement and with one",
        "models_by_gpus": "Which models fit on which GPUs, and how many drafts are best there",
        "live_sessions_cpu": "Sessions with sleeping tools on live engines, on CPU",
        "live_sessions_cuda": "The same with a 7B shape on one GPU",
        "live_schedules": "Schedules that stop, carry over or never stop, on live engines",
        "natural_predicted_cpu": "Natural responses and a trained drafter, on CPU",
        "natural_predicted_cuda": "The same on one GPU, to 2,048 tokens",
        "other_shapes": "FP8 weights: does it pay to draft, and how many",
        "roofline_drafting": "What drafting costs on engines that nobody calibrated",
        "roofline_ranking": "Whether assumed step times rank as calibrated ones do",
        "borrowed": "Step times out of another project's tables",
        "between_sessions": "How far two calibrations of the same thing are apart",
        "regimes_cuda": "Regimes that the replays leave out, on one GPU",
        "regimes_cuda_tp2": "Regimes that the replays leave out, on two GPUs",
        "regimes_cpu": "Regimes that the replays leave out, on CPU",
    },
    "The simulator against what others published": {
        "public_questions": "Questions that people asked in public",
        "fig13_cells": "TLT's figure 13, cells that the fit did not see",
        "table4_cells": "TLT's table 4, cells that the fit did not see",
        "case_study": "TLT's case study: 128 requests on one worker",
        "published_results": "14 published results",
        "published_async": "Published rows of asynchronous training",
        "released_vs_paper": "TLT as released against TLT as in its paper",
    },
    "The simulator against itself": {
        "jump_vs_exact": "Jump mode against every engine step drawn",
        "jump_vs_exact_queues": "The same where prompts join batches that decode",
        "acceptance_modes": "The same where requests differ in acceptance, by policy",
        "session_modes": "The same where requests are sessions with tools",
        "gpu_time_adds_up": "GPU time adds up",
        "interval_coverage": "How often an interval holds the truth",
        "determinism": "One seed, the same bytes",
        "short_tail": "A control in which little is idle",
        "speed": "How fast it simulates",
        "speed_scale": "The same on large clusters, and what the cost grows with",
        "sweep_speed": "A thousand configurations",
        "sweep_on_ray": "The same on a Ray cluster that loses a node",
        "full_size_counterfactual": "A counterfactual of full verl size, from a log to the answer",
        "full_size_recommend": "A recommendation of full verl size",
        "peer_speed": "Against AISimulate's replay",
    },
    "The goodput policy": {
        "goodput_static": "Against the best static choice in hindsight, simulated",
        "goodput_recorded": "Its estimate of acceptance on recorded drafts",
        "goodput_live": "On a live engine with a weak drafter",
        "natural_policies_cuda": "On one GPU with natural responses, against each K and the rule before it",
        "natural_policies_cpu": "On a live engine on CPU, where no drafts are best",
        "request_limits": "What limits of drafts by request could gain",
    },
    "Sessions": {
        "session_routing": "610 sessions through each routing rule",
        "session_speculation": "What speculation gains where batches wait for tools",
    },
    "RL training on live engines": {
        "training_h200": "A trained drafter and the goodput policy, end to end, natural lengths",
        "training_forced": "A trained drafter and the goodput policy, end to end, equal lengths",
        "training_7b": "The same with a 7B model, simulated",
        "training_staleness": "A frozen drafter against one that is trained",
        "head_served": "The drafter before RL, served by stock vLLM",
        "training_passes": "Where the time of the update goes",
        "training_h200x2": "Five policies on two GPUs, as measured and at one pace of the machine",
        "training_h200x2_before": "The same, predicted before it was run",
        "training_moving": "A policy that moves: a frozen drafter against one that is trained",
        "heads_served": "The drafter that RL left beside the one before, served by stock vLLM",
        "head_training_speed": "How fast idle workers train a drafter",
        "training_h200x4_moving": "A policy that moves: the drafter trained on packed rows",
        "heads_served_h200x4": "The drafter that RL left beside the one before, trained on packed rows",
        "training_h200x4_before": "RL on four GPUs, predicted on the machine before it was run",
    },
    "The live engine": {
        "lossless": "Speculation does not change what is sampled",
        "exported_table": "An exported table on stock vLLM",
        "hook_overhead_smollm2-135m": "What the driver costs",
        "k0_skip": "K = 0 without the drafter's pass",
        "plugin_trl": "The plugin in TRL's own engine: watching, advising, in charge",
        "plugin_versions": "The plugin in every version of vLLM that it knows",
        "plugin_faults": "The plugin breaks while it is in charge",
        "plugin_serve_cuda": "The plugin in a stock server on one GPU: what watching costs, what it gains",
        "plugin_serve_cpu": "The plugin in a stock server on a CPU: what watching costs, what it gains",
    },
    "The tool": {
        "demo": "The demonstration",
        "demo_assumptions": "What the demonstration's answer hangs on",
        "fresh_clone": "A fresh clone",
        "import_fuzz": "1,000 broken and hostile files",
        "kills": "Live runs that are shot at",
        "kills_vllm": "Live runs that are shot at, with vLLM on CPU",
        "soak": "Memory and descriptors over thousands of steps",
        "mutants": "Would the tests notice?",
        "mends": "Do tests hold what was mended?",
        "hostile_files": "Absurd settings, step times and exports, damaged folders",
        "event_fuzz": "Events of a driver that errs",
        "key_fuzz": "Logs with a known truth: waits, tools, generations, units, shares",
        "import_large": "A file of 5 GB",
        "large_file": "A CSV of ten million rows",
    },
}
# Claims that may lack a record: docs/regimes.md says of the regimes that they are not measured; the others
# take a quiet machine for some minutes, or a GPU.
MAY_LACK = (
    "regimes_cuda", "regimes_cuda_tp2", "regimes_cpu", "kills_vllm", "sweep_speed", "sweep_on_ray",
    "peer_speed", "full_size_counterfactual", "full_size_recommend", "plugin_serve_cuda", "plugin_serve_cpu",
)  # fmt: skip
TITLES = {name: title for claims in SUBJECTS.values() for name, title in claims.items()}


def percent(share: float) -> str:
    """Return a share as a percentage, halves rounded up; tiny ones as they are."""
    hundredfold = Decimal(str(share)) * 100
    if share and abs(hundredfold) < Decimal("0.01"):
        return f"{share:.1e}"
    digits = Decimal("1") if abs(hundredfold) >= 100 else Decimal("0.1")
    return f"{hundredfold.quantize(digits, ROUND_HALF_UP)} %"


def times(ratio: float) -> str:
    """Return a ratio such as 1.59x, halves rounded up."""
    digits = Decimal("1") if abs(ratio) >= 100 else Decimal("0.01")
    return f"{Decimal(str(ratio)).quantize(digits, ROUND_HALF_UP):,}x"


def _read(record: Evidence, figure: str) -> float:
    return value_of(record.value[figure])


def _h100(record: Evidence) -> str:
    ranked = "ranked right" if _read(record, RANKING) == 1.0 else "NOT ranked right"
    return (
        f"Makespan of six policies within {percent(_read(record, 'largest makespan error'))} of what was "
        f"measured, speedups within {percent(_read(record, 'largest speedup error'))}, {ranked}"
    )


def _cpu(record: Evidence) -> str:
    return (
        f"On CPU, makespan within {percent(_read(record, 'largest makespan error'))}, but the order of four "
        f"policies that lie within a few percent is wrong (rank correlation "
        f"{_read(record, RANKING):.1f}, regret {percent(_read(record, 'regret'))})"
    )


def _cells(record: Evidence) -> str:
    return (
        "TLT's published speedups (figure 13), on cells the fit did not see: mean error "
        f"{percent(_read(record, 'mean error'))}, largest {percent(_read(record, 'largest'))} (a regression "
        f"that knows no engine: {percent(_read(record, 'mean error of a regression that knows no engine'))})"
    )


def _counterfactual(record: Evidence) -> str:
    return (
        "What speculation would have gained in an RL run, predicted from the run without it: within "
        f"{percent(_read(record, 'largest error of a speedup'))} of the speedups measured later"
    )


def _published(record: Evidence) -> str:
    close = _read(record, "of these, within 15 %") + _read(record, "of the others, within 15 %")
    return (
        f"Other published results: {_read(record, 'direction right'):.0f} of 14 in the right direction, "
        f"{close:.0f} within 15 %; of the {_read(record, WELL):.0f} whose setup is published well enough, "
        f"{_read(record, 'of these, within 15 %'):.0f}"
    )


def _end_to_end(record: Evidence) -> str:
    def told(name: str) -> str:
        figure = record.value[name]
        assert isinstance(figure, tuple)
        return "{} [{}, {}]".format(*map(times, figure))

    rule = told("end to end, TLT's rule (tlt_chains/online)")
    return (
        f"RL of a 135M model, end to end: {told('end to end')} with this project's goodput policy and a "
        f"trained drafter, not told apart from static:4 untrained ({told('end to end, static:4/frozen')}); "
        f"{rule} with TLT's own rule; 1.7x aimed at"
    )


HEADLINES: Mapping[str, Callable[[Evidence], str]] = {
    "crosscheck_h100": _h100,
    "fig13_cells": _cells,
    "counterfactual_h200": _counterfactual,
    "crosscheck_cpu": _cpu,
    "published_results": _published,
    "training_h200": _end_to_end,
}
