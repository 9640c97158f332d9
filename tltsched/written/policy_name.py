"""Names of policies as users write them: POLICY[@SCHEDULE][/online|/frozen].

Both may have parameters in brackets (tltsched.written.parameters).

POLICY is a preset (`tlt`), or a form with an argument (`static:4`, `goodput:off+1+2`). SCHEDULE is a rollout
schedule (`tail_batching`). What follows the slash says whether a drafter is trained on idle workers. This
file alone knows the signs `:`, `+`, `@` and `/`; which policies and schedules there are it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

from tltsched.errors import InputError, unknown_name

DrafterMode = Literal["online", "frozen"]
DRAFTER_MODES: tuple[str, ...] = get_args(DrafterMode)
FORM = "POLICY[@SCHEDULE][/online|/frozen]"


class PolicyName(msgspec.Struct, frozen=True, order=True):
    """The parts of a name; None: not stated."""

    policy: str
    schedule: str | None = None
    drafter: DrafterMode | None = None

    @classmethod
    def parse(cls, text: str) -> PolicyName:
        """Read a name; raises InputError for one that has not this form.

        Whether there is such a policy and such a schedule is asked by parse_policy and parse_schedule.
        """
        rest, slash, drafter = text.strip().partition("/")
        policy, at, schedule = (part.strip() for part in rest.partition("@"))
        if slash and drafter not in DRAFTER_MODES:
            raise unknown_name(f"drafter in {text!r}", drafter, DRAFTER_MODES, f"write {FORM}")
        if (at and not schedule) or "@" in schedule:
            raise InputError("policy", text, FORM, "name one schedule after the @, or leave it out")
        return cls(policy, schedule or None, drafter if slash else None)  # type: ignore[arg-type]

    def __str__(self) -> str:
        schedule = "" if self.schedule is None else f"@{self.schedule}"
        return self.policy + schedule + ("" if self.drafter is None else f"/{self.drafter}")

    @property
    def form(self) -> tuple[str, str | None]:
        """The policy's own name and its argument: (`static`, `4`); None: there is no colon."""
        name, colon, argument = self.policy.partition(":")
        return name, argument if colon else None

    def on(self, schedule: str | None) -> PolicyName:
        """Return the same policy with another schedule."""
        return msgspec.structs.replace(self, schedule=schedule)

    def with_drafter(self, drafter: DrafterMode | None) -> PolicyName:
        """Return the same policy with a drafter that is trained or not; None: not stated."""
        return msgspec.structs.replace(self, drafter=drafter)


def items_of(argument: str) -> tuple[str, ...]:
    """Return the items of an argument: `off+1+2` has three."""
    return tuple(item.strip() for item in argument.split("+"))


def policy_of(form: str, items: Iterable[object]) -> str:
    """Return the text of a policy with an argument, such as `goodput:off+1+2`."""
    return f"{form}:{'+'.join(map(str, items))}"


def folded(name: str, columns: int, signs: str = ":+@/_(,") -> str:
    """Break a name of more than `columns` characters at these signs, for a narrow table.

    A line begins with a slash and ends with any other sign. Underscores count in names with a schedule alone.
    """
    if len(name) <= columns:
        return name
    kept = signs if "@" in name else signs.replace("_", "")
    return "".join(_broken(sign) if sign in kept else sign for sign in name).removesuffix("\n")


def _broken(sign: str) -> str:
    return f"\n{sign}" if sign == "/" else f"{sign}\n"
