"""What a log says of its times, in sentences that go with any figure made from them."""

from __future__ import annotations

from tlt.traces.importers.phases import PhaseTimes

TOLD = 0.01  # of a step, or of a rollout: less is not worth a word


def sentences(times: PhaseTimes) -> list[str]:
    """Return sentences on the meaning of the times; the framework's own note comes last."""
    found = [*_rollouts(times), *_kept(times)]
    if times.drafts is not None:
        found.append(f"The run drafted: {times.drafts.origin}.")
    return [*found, times.note] if times.note else found


def _rollouts(times: PhaseTimes) -> list[str]:
    about, gen = times.rollouts, times.phases.get("gen")
    found = []
    if about.side_by_side:
        found.append(
            f"Rollouts go on while the policy is trained ({about.side_by_side}): none is a part of a step."
        )
    if gen is None:
        return found
    if about.mean_generations() > 1.0:
        found.append(
            f"A rollout is {about.mean_generations():.3g} generations in the mean, one after the other: each "
            "is taken to be of as many responses, and as long ones, as the step trained on."
        )
    if about.dropped:
        found.append(
            f"Responses were generated and dropped ({about.dropped}): rollouts hold more than those that are "
            "read."
        )
    least, most = about.fixed_least.mean_s, about.fixed_most.mean_s
    if most > TOLD * gen.mean_s:
        reach = f"{least:.4g} s" if most - least < TOLD * gen.mean_s else f"{least:.4g} to {most:.4g} s"
        found.append(
            f"Of the {gen.mean_s:.4g} s of a rollout {reach} are waiting for tools and scoring or are not "
            "generation: no draft shortens them."
        )
    if about.turns:
        found.append("Responses have several turns: their logged lengths may hold what tools said.")
    return found


def _kept(times: PhaseTimes) -> list[str]:
    step = times.phases.get("step")
    if step is None:
        return []
    told = [
        f"{name} {time.mean_s:.3g} s"
        for name, time in sorted(times.kept.items(), key=lambda item: -item[1].mean_s)
        if TOLD * step.mean_s < time.mean_s <= step.mean_s
    ]
    if not told:
        return []
    more = f" and {len(told) - 5} more" if len(told) > 5 else ""
    return [f"Times that are no phase here: {', '.join(told[:5])}{more}."]
