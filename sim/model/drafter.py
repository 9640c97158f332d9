"""The drafter over RL steps: it falls behind when the policy moves and catches up when it is trained.

State: an exponent e on all survivals (sim.acceptance.process), 1 for a head that is trained in full.
Each policy update adds `drift_per_update`; n trained tokens shrink the excess e - 1 of the rollout they were
trained in to (e - 1) exp(-n / recovery_tokens). Engines feel an update at once, and training only when it is
published. A negative drift is a policy that gets easier to predict: e may fall below 1, where training adds
nothing. Reports on drift conflict (some see none over 36 steps), so no drift is the default; a measured curve
(tlt.sim.drift) may be named instead.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tlt.sim.acceptance.laws import require_survivals
from tltsched.errors import InputError

SMALLEST_EXPONENT = 1e-3  # all drafts are accepted, nearly


MODEL_FREE = ("history", "ngram")


class HistoryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Drafts copied out of earlier responses (tlt.sim.model.suffix_drafts). All defaults are assumed."""

    hit_rate: Annotated[
        float,
        Meta(gt=0.0, le=1.0, description="share of request-steps with a match in an earlier response; "
             "nothing is drafted in the others"),
    ] = 0.6  # fmt: skip
    survival_by_position: Annotated[
        tuple[float, ...], Meta(description="P(drafts up to position j are all accepted), given a match")
    ] = (0.85, 0.75, 0.67, 0.6, 0.54, 0.49, 0.44, 0.4)
    first_epoch_steps: Annotated[
        int,
        Meta(ge=0, description="RL steps before prompts come back: their first epoch"),
    ] = 1
    group_hit_rate: Annotated[
        float,
        Meta(ge=0.0, le=1.0, description="hit_rate in the first epoch, out of the other responses to the "
             "prompt alone; 0: nothing is drafted there"),
    ] = 0.0  # fmt: skip
    reuse_prefix_share: Annotated[
        float,
        Meta(ge=0.0, lt=1.0, description="share of a response that a pass over the one of the last epoch "
             "confirms, from the second epoch on (SPEC-RL); 0: no such pass"),
    ] = 0.0  # fmt: skip
    lookup_s: Annotated[float, Meta(ge=0.0, description="what looking up adds to a drafting engine step")] = (
        0.0
    )

    def __post_init__(self) -> None:
        require_survivals("drafter.history.survival_by_position", self.survival_by_position)
        if self.group_hit_rate > self.hit_rate:
            raise InputError(
                "drafter.history.group_hit_rate", self.group_hit_rate,
                f"0 to hit_rate = {self.hit_rate}", "a group is part of the history: lower it",
            )  # fmt: skip


class DrafterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the drafter ages and what training it takes. All defaults are assumed unless marked."""

    kind: Annotated[
        Literal["head", "mtp", "draft_model", "block", "history", "ngram"],
        Meta(description="head: one trained layer (EAGLE-3); mtp: the target's own module; draft_model: a "
             "smaller model; block: one pass for all drafts (DFlash, DSpark), each at its own assumed cost; "
             "history: a suffix tree of earlier responses, ngram: matches in the request's own text, neither "
             "of which takes GPU time (drafter.history, in place of acceptance.*)"),
    ] = "head"  # fmt: skip
    model: Annotated[str, Meta(description="draft_model: its shape, by name or config.json")] = ""
    block_layers: Annotated[int, Meta(ge=1, description="block: layers of the drafter (assumed)")] = 5
    history: Annotated[
        HistoryConfig, Meta(description="drafts without a model; epochs and groups mean nothing to ngram")
    ] = HistoryConfig()
    exists: Annotated[bool, Meta(description="whether a trained drafter serves from the first step on")] = (
        True
    )
    drift: Annotated[
        str,
        Meta(description="a measured drift curve, by name or file: it sets drift_per_update and, where it "
             "knows it, recovery_tokens; empty: those fields count"),
    ] = ""  # fmt: skip
    initial_exponent: Annotated[
        float, Meta(ge=1.0, description="exponent of the acceptance at the start: 1 is the law itself")
    ] = 1.0
    drift_per_update: Annotated[
        float, Meta(description="added to the exponent by each policy update; 0: no drift")
    ] = 0.0
    recovery_tokens: Annotated[
        float, Meta(gt=0.0, description="trained tokens that shrink the excess exponent to 1/e of it")
    ] = 2e6
    training_tokens_per_s: Annotated[
        float,
        Meta(gt=0.0, description="response tokens trained per second and worker (29.6 packed samples/s is "
             "published; 2,048 tokens a sample are assumed)"),
    ] = 60_000.0  # fmt: skip
    activation_s: Annotated[
        float, Meta(ge=0.0, description="from idle to the first training step: weights and optimizer state")
    ] = 5.0
    stop_s: Annotated[
        float, Meta(ge=0.0, description="from the order to stop until the worker can decode again")
    ] = 0.1
    publish_s: Annotated[
        float, Meta(ge=0.0, description="sending drafter weights to all workers at the step boundary")
    ] = 0.5

    def __post_init__(self) -> None:
        if (self.kind == "draft_model") != bool(self.model):
            raise InputError(
                "drafter.model", self.model, "a model with drafter.kind = 'draft_model', else none",
                "name the drafting model, such as Qwen3-0.6B" if not self.model else "leave it out",
            )  # fmt: skip

    @property
    def model_free(self) -> HistoryConfig | None:
        """Return how drafts without a model are found; None: a model drafts."""
        if self.kind not in MODEL_FREE:
            return None
        if self.kind == "history":
            return self.history
        # The request's own text is there from its first token on, and other responses are not looked at.
        own = {"first_epoch_steps": 0, "group_hit_rate": 0.0, "reuse_prefix_share": 0.0}
        return msgspec.structs.replace(self.history, **own)


class Drafter:
    """Version, age and acceptance exponent of the drafter that serves."""

    def __init__(self, config: DrafterConfig) -> None:
        self.config = config
        self.version = 0 if config.exists else -1
        self.age_steps = 0
        self.exponent = config.initial_exponent
        self._rollout_exponent = self.exponent
        self._updates = 0

    def begin_step(self) -> None:
        """Note that responses, and so training data, come from the policy as it is now."""
        self._rollout_exponent = self.exponent
        self._updates = 0

    def policy_updated(self) -> None:
        """Note a policy update: the serving drafter lags one more."""
        self._updates += 1
        self.age_steps += 1
        self.exponent = max(self.exponent + self.config.drift_per_update, SMALLEST_EXPONENT)

    def publish(self, version: int, trained_tokens: int) -> None:
        """Serve weights trained on this step's responses: they lag what the policy moved since then."""
        excess = max(self._rollout_exponent - 1.0, 0.0)
        gained = excess * -math.expm1(-trained_tokens / self.config.recovery_tokens)
        self.version = version
        self.age_steps = self._updates
        self.exponent -= gained
