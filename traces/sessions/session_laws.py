"""All laws that sessions are generated from, as one file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tlt.traces.common.bounds import require_size
from tlt.traces.common.migrate import decode
from tlt.traces.lengths.schema import Origin
from tlt.traces.sessions.laws import Quantity
from tlt.traces.sessions.turns import SessionLimits
from tltsched.errors import InputError


class SessionLaws(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What sessions are drawn from; draws of different quantities are independent of one another.

    turns: of a session; its correlation is between the sessions of a prompt group.
    prompt_tokens: of a first prompt, drawn once a prompt group.
    input_tokens, response_tokens, wait_s: of a turn that a further one follows (input: of that further one);
    their correlation is between the turns of a session. None: sessions of one turn.
    last_response_tokens: of the last turn.
    wait_s: None: not known; then waits of generated sessions are not known either.
    waits_known: how many of the `waits` between turns the fit knew.
    """

    origin: Origin
    turns: Quantity
    prompt_tokens: Quantity
    last_response_tokens: Quantity
    response_tokens: Quantity | None = None
    input_tokens: Quantity | None = None
    wait_s: Quantity | None = None
    limits: SessionLimits = SessionLimits()
    waits: int = 0
    waits_known: int = 0

    def quantities(self) -> dict[str, Quantity]:
        """Return the laws that there are, by name."""
        named = {field: getattr(self, field) for field in QUANTITIES}
        return {field: value for field, value in named.items() if value is not None}


QUANTITIES = (
    "turns", "prompt_tokens", "input_tokens", "response_tokens", "last_response_tokens", "wait_s",
)  # fmt: skip


def load_laws(path: Path) -> SessionLaws:
    """Read the file of laws that `tlt trace fit` wrote; raises InputError if it is something else."""
    if not path.is_file():
        raise InputError(
            "laws of sessions", str(path), "a file that exists", "`tlt trace fit --out` writes one"
        )
    require_size(path, "laws of sessions")
    try:
        return decode(path.read_bytes(), SessionLaws)
    except (msgspec.MsgspecError, OSError) as error:
        raise InputError(
            f"laws in {path.name}", str(error), "what `tlt trace fit --out` writes", "fit the sessions again"
        ) from None
