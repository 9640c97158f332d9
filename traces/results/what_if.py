"""How the answer of a comparison moves with acceptance and with the number of GPUs, what_if.json.

Each policy's seconds a trained token were simulated at other acceptances and on other numbers of GPUs, one at
a time, over the first RL steps, and are kept as multiples of those as configured.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tlt.traces.runs.runfolder import FORMAT_VERSION, read_struct

WHAT_IF = "what_if.json"


class PolicyWhatIf(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Multiples of one policy's seconds a trained token; None: it cannot run so."""

    policy: str
    by_acceptance: tuple[float | None, ...]  # of WhatIf.exponents
    by_gpus: tuple[float | None, ...]  # of WhatIf.gpus


class WhatIf(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The grid. An exponent above 1 accepts less: survivals are raised to it."""

    format_version: int = FORMAT_VERSION
    steps: int  # RL steps that were simulated
    exponents: tuple[float, ...]  # rising; 1 among them
    first_accepted: tuple[float, ...]  # chance of the first draft, at each exponent
    exponent_error: float  # standard deviation of the log of the exponent; 0: acceptance was measured
    gpus: tuple[int, ...]  # rising; those configured among them
    policies: tuple[PolicyWhatIf, ...]

    def of(self, policy: str) -> PolicyWhatIf | None:
        """Return one policy; None: it is not in the grid."""
        return next((each for each in self.policies if each.policy == policy), None)


def read_what_if(folder: Path) -> WhatIf | None:
    """Read what_if.json; None if the folder has none. Raises InputError if it is not of that form."""
    path = folder / WHAT_IF
    return read_struct(path, WhatIf) if path.is_file() else None
