"""An observed run whose log says that it drafted: the policy that it was under, and its law of acceptance."""

from __future__ import annotations

import re
from typing import Any

from tlt.traces.importers.acceptance.counted import geometric_rate
from tlt.traces.importers.stated.drafts import StatedDrafts
from tltsched.errors import InputError

CHAIN = re.compile(r"static:(\d{1,2})")


def observed_policy(drafts: StatedDrafts | None, given: str | None, stated: str) -> str:
    """Return the policy of the run: what the user says, else what its drafts say, else `stated`.

    Raises InputError if the user says that it did not draft, or if nobody says how many drafts it made.
    """
    if drafts is None:
        return given or stated
    depth = drafts.law.depth if drafts.law is not None else None
    if given is None and depth is not None:
        return f"static:{depth}"
    if given is None or given == "none":
        raise InputError(
            "--observed", given or "nothing", f"static:{depth or 'K'}",
            f"the run drafted ({drafts.origin}{_length(drafts)}): say how many drafts a verification had",
        )  # fmt: skip
    return given


def _length(drafts: StatedDrafts) -> str:
    return (
        f", {1 + drafts.accepted:.2f} tokens a verification with the bonus token" if drafts.accepted else ""
    )


def acceptance_of(drafts: StatedDrafts, policy: str) -> tuple[dict[str, Any], str]:
    """Return the section `acceptance` of a run under `policy`, and a sentence; empty if it is not known."""
    if drafts.law is not None:
        return drafts.law.settings(), f"acceptance is the run's own: {drafts.law.origin}"
    chain = CHAIN.fullmatch(policy)
    if chain is None or not 0 < drafts.accepted <= int(chain[1]):
        return {}, ""
    depth = int(chain[1])
    origin = f"{drafts.origin}: drafts of {depth}, acceptance length {1 + drafts.accepted:.3g} with bonus"
    section = {"kind": "geometric", "rate": geometric_rate(drafts.accepted, depth), "measured": origin}
    return (
        section,
        f"acceptance is the run's own mean, its shape over positions geometric (assumed): {origin}",
    )
