"""When who is shot: a moment names the order that a worker was just given, or how far a calibration is."""

from __future__ import annotations

from signal import Signals
from typing import Literal

import msgspec

Task = Literal["replay", "train_policy", "train_drafter", "calibrate"]
Whom = Literal["worker", "driver"]


class Moment(msgspec.Struct, frozen=True):
    """The `count`-th order of this name was sent to its worker, `after_s` ago.

    Orders are named as messages are, phases by their own name; of a calibration, `measured` is a point.
    """

    task: Task
    whom: Whom
    signal: str
    order: str
    count: int = 1
    after_s: float = 0.0

    def title(self) -> str:
        """Return it in words."""
        words = {
            "Prepare": "engines start", "PrepareTraining": "engines start", "Train": "drafter training",
            "Publish": "drafter is published", "policy_update": "update", "weight_sync": "weight sync",
            "Save": "checkpoint", "logprob": "log-probabilities", "measured": "points are measured",
            "Work": "decode" if self.after_s else "prefill",
        }  # fmt: skip
        tasks = {"replay": "replay", "calibrate": "calibration"}
        whom = {"worker": "worker", "driver": "driver"}[self.whom]
        whom = "neighbour" if (self.task, whom) == ("calibrate", "worker") else whom
        return f"{tasks.get(self.task, 'training')}: {whom}, {self.signal}, {words[self.order]}"

    def number(self) -> Signals:
        """Return the signal."""
        return Signals[self.signal]


MOMENTS = (
    Moment("replay", "worker", "SIGKILL", "Work"),
    Moment("replay", "worker", "SIGKILL", "Work", 3, 0.3),
    Moment("replay", "worker", "SIGSTOP", "Work", 1, 0.3),
    Moment("replay", "driver", "SIGKILL", "Prepare", 1, 0.1),
    Moment("replay", "driver", "SIGKILL", "Work", 3, 0.3),
    Moment("replay", "driver", "SIGTERM", "Work", 3, 0.3),
    Moment("replay", "driver", "SIGINT", "Work", 3, 0.3),
    Moment("train_policy", "worker", "SIGKILL", "Work", 3),
    Moment("train_policy", "worker", "SIGKILL", "Work", 3, 0.2),
    Moment("train_policy", "worker", "SIGKILL", "logprob", 3),
    Moment("train_policy", "worker", "SIGKILL", "policy_update", 3),
    Moment("train_policy", "worker", "SIGKILL", "weight_sync", 3),
    Moment("train_policy", "worker", "SIGKILL", "Save", 3),
    Moment("train_policy", "worker", "SIGSTOP", "policy_update", 3),
    Moment("train_policy", "driver", "SIGKILL", "policy_update", 3),
    Moment("train_policy", "driver", "SIGTERM", "Work", 3, 0.2),
    Moment("train_drafter", "worker", "SIGKILL", "Train", 2, 0.1),
    Moment("train_drafter", "worker", "SIGKILL", "Publish", 3),
    Moment("train_drafter", "driver", "SIGKILL", "Train", 2, 0.1),
    Moment("calibrate", "worker", "SIGKILL", "measured", 4),
    Moment("calibrate", "worker", "SIGSTOP", "measured", 4),
    Moment("calibrate", "driver", "SIGKILL", "measured", 4),
    Moment("calibrate", "driver", "SIGTERM", "measured", 4),
)
