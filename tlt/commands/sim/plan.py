"""The options of `tlt sim recommend` that search over clusters, and what they mean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tlt.commands.options import names_of, numbers_of

PLAN_CHOICES = ("gpu", "tp", "engines", "schedules", "price", "on_policy")
SCHEDULES = "synchronous,tail_batching,oversample_partial,repack,bounded_async"
OPTIONS = (
    click.option("--gpus-budget", type=click.IntRange(min=1), metavar="N",
                 help="Search over clusters of at most N GPUs; the options below say which."),
    click.option("--gpu", metavar="GPU,...", help="GPUs to choose from; default: the configured one."),
    click.option("--tp", metavar="N,...", help="GPUs of one engine; default: the configured number."),
    click.option("--engines", metavar="N,...", help="Engines; default: as many as the budget allows."),
    click.option("--schedules", metavar="SCHEDULE,...", help=f"Default: {SCHEDULES}."),
    click.option("--price", metavar="GPU=USD,...",
                 help="USD per GPU and hour: then the cost of a step is compared."),
    click.option("--on-policy", is_flag=True, help="Leave out schedules whose samples are not on-policy."),
)  # fmt: skip


def plan_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a search to a command."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def search(
    settings: dict[str, Any], policies: list[str] | None, out: Path, progress: Callable[[str], None], *,
    gpus_budget: int, gpu: str | None, tp: str | None, engines: str | None, schedules: str | None,
    price: str | None, on_policy: bool, executor: Any, jobs: int | None,
) -> None:  # fmt: skip
    """Search and write the plan into `out`; raises InputError."""
    from tlt.sim.config import resolve
    from tlt.sim.parallel.executors import executor as opened
    from tlt.sim.policy_set import default_policies
    from tlt.sim.search.search import Planner, Task
    from tlt.sim.search.space import Space, candidates
    from tlt.sim.search.write import write_files
    from tlt.sim.workload import load_workload
    from tltsched.policies import parse_policy
    from tltsched.schedules import parse_schedule

    base = resolve(settings, "none")
    hardware, seed = base.hardware, base.run.seed
    policies = list(default_policies(base)) if policies is None else policies
    named = tuple(names_of(schedules or SCHEDULES) or ())
    for schedule in named:
        parse_schedule(schedule)
    for policy in policies:
        parse_policy(policy)
    space = Space(
        gpus_budget=gpus_budget,
        gpus=tuple(names_of(gpu) or ()) or (hardware.gpu,),
        tp=tuple(_counts("--tp", tp)) or (hardware.tp,),
        groups=hardware.pp * hardware.attention_dp,
        engines=tuple(_counts("--engines", engines)),
        schedules=named,
        policies=tuple(policies),
        only_on_policy=on_policy,
    )
    trace = load_workload(base.workload, seed)
    task = Task(space=space, prices=prices_of(price), trace=trace, seed=seed)
    with opened(executor, jobs) as running:
        result = Planner(task, running, progress).search(*candidates(settings, space, trace))
    write_files(result, out, progress)


def _counts(option: str, text: str | None) -> list[int]:
    from tltsched.errors import InputError

    counts = numbers_of(option, text, int)
    if any(count < 1 for count in counts):
        raise InputError(option, text, "numbers from 1 on", "correct the list")
    return counts


def prices_of(text: str | None) -> dict[str, float]:
    """Read GPU=USD,...; raises InputError."""
    from tltsched.errors import InputError

    prices = {}
    for part in names_of(text) or ():
        gpu, _, usd = part.partition("=")
        try:
            prices[gpu.strip()] = float(usd)
        except ValueError:
            prices[gpu.strip()] = 0.0
        if not 0.0 < prices[gpu.strip()] < float("inf"):
            raise InputError("--price", part, "GPU=USD above 0, such as H100=2.5", "correct it")
    return prices


def refuse_alone(choices: dict[str, Any]) -> None:
    """Raise InputError if an option of the search was given without a budget."""
    from tltsched.errors import InputError

    for name, value in choices.items():
        if value not in (None, False):
            option = f"--{name.replace('_', '-')}"
            raise InputError(option, value, "only with --gpus-budget", "add --gpus-budget N")
