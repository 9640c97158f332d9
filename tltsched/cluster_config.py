"""How a step is laid out over workers and time: the settings of a ClusterScheduler."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tltsched.dispatch import DISPATCH
from tltsched.drafter_choice import FallbackConfig
from tltsched.errors import InputError
from tltsched.schedules import PRESETS, ScheduleSpec, parse_schedule
from tltsched.sessions.routing import RoutingConfig, parse_routing
from tltsched.sessions.tools import MOST_AT_ONCE
from tltsched.spot import SpotConfig


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a step is laid out over workers and time."""

    dispatch: Annotated[
        str, Meta(description="Which worker gets which request; a name in tltsched.dispatch.DISPATCH.")
    ] = "contiguous"
    schedule: Annotated[
        str | ScheduleSpec,
        Meta(
            description="Which requests are generated when; a name in tltsched.schedules.PRESETS, or a table "
            "with `kind`."
        ),
    ] = "synchronous"
    routing: Annotated[
        str | RoutingConfig,
        Meta(
            description="Which worker gets the next turn of a session: sticky, least_loaded, round_robin or "
            "prefix, or a table with `rule`."
        ),
    ] = "sticky"
    tools_at_once: Annotated[
        int, Meta(description="Tool calls that run at once, the others queue; 0: no limit.")
    ] = 0
    phases: Annotated[
        tuple[str, ...],
        Meta(description="What follows the rollout, in order; all workers take part in each."),
    ] = ("reward", "logprob", "policy_update", "weight_sync")
    spot: Annotated[SpotConfig, Meta(description="Drafter training on idle workers.")] = SpotConfig()
    fallback: Annotated[
        FallbackConfig, Meta(description="Drafts without a model until the head is better (live engines).")
    ] = FallbackConfig()

    def __post_init__(self) -> None:
        if self.dispatch not in DISPATCH:
            raise InputError("dispatch", self.dispatch, ", ".join(sorted(DISPATCH)), "choose one of these")
        self.routing_config()
        if not 0 <= self.tools_at_once <= MOST_AT_ONCE:
            raise InputError("tools_at_once", self.tools_at_once, f"0 to {MOST_AT_ONCE:,}", "0 sets no limit")
        spec = self.schedule_spec()
        if spec.overlaps and self.spot.enabled:
            raise InputError(
                "spot.enabled", True, "false under a schedule whose rollouts never end",
                "no worker falls idle: leave drafter training out",
            )  # fmt: skip
        if len(set(self.phases)) != len(self.phases) or "" in self.phases:
            raise InputError("phases", self.phases, "names, each once", "correct the list")

    def schedule_spec(self) -> ScheduleSpec:
        """Return the settings of the schedule; raises InputError for an unknown name."""
        return parse_schedule(self.schedule) if isinstance(self.schedule, str) else self.schedule

    def routing_config(self) -> RoutingConfig:
        """Return the settings of the routing rule; raises InputError for an unknown name."""
        return parse_routing(self.routing) if isinstance(self.routing, str) else self.routing

    def require_sessions(self) -> None:
        """Raise InputError if the schedule cannot have sessions, which leave their workers for tools."""
        spec = self.schedule_spec()
        if not spec.sessions:
            able = ", ".join(name for name, preset in PRESETS.items() if preset.sessions)
            raise InputError(
                "cluster.schedule", str(spec.__struct_config__.tag), f"with sessions: {able}",
                "it moves requests by their lengths and takes no turns: choose another",
            )  # fmt: skip

    def knows_lengths(self) -> bool:
        """Return whether requests are placed by lengths known in advance, which nobody has."""
        return self.schedule_spec().knows_lengths or self.dispatch == "longest_first"
