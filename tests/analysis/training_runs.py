"""Small training folders with figures that are known, made by arithmetic and seeded lengths.

In a step each worker prefills, decodes (the second half with drafts, if the policy drafts) and waits for the
longest response. Where the drafter is trained, the wait is activation, early log-probabilities and training,
and the phases begin HANDOVER_S after the last response; else at once. Chains have DEPTH drafts; of position j
a share of acceptance ** (j + 1) is accepted.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from tlt.traces.runs.engine_steps import ENGINE_STEP_COLUMNS
from tlt.traces.runs.runfolder import Comparison, RunFolder, Summary, write_json
from tlt.traces.runs.training import HEAD_COLUMNS, PROBE_COLUMNS, REWARD_COLUMNS, UPDATE_COLUMNS
from tltsched.draft_config import chain
from tltsched.event_log import CLUSTER, Recorder, worker_owner
from tltsched.events import DecisionEnded, Event, Request, RolloutBegan, StepBegan

WORKERS, GROUPS, SAMPLES, CAP_TOKENS = 4, 6, 4, 2_000
REQUESTS = GROUPS * SAMPLES
TOKEN_S, PREFILL_S = 0.01, 0.2
HANDOVER_S, STOP_S, ACTIVATION_S, EARLY_S = 0.05, 0.03, 0.1, 0.3
PHASES_S = {"reward": 0.5, "logprob": 1.0, "policy_update": 2.0}
PUBLISH_S, SYNC_S = 0.1, 0.3
DEPTH, ENGINE_STEPS = 4, 10_000  # request-steps of a worker in a step
PROBE = 0.6  # acceptance of the initial head in the first step


class PolicyPlan(NamedTuple):
    """What a policy does; `drift` is lost and `learned` gained of acceptance at each step."""

    policy: str
    speed: float = 1.0
    drafts: bool = False
    trains: bool = False
    drift: float = 0.0
    learned: float = 0.0
    reward: float = 0.0  # added to the chance of a right answer
    length_seed: int = 1
    luck_seed: int = 7
    prompt_tokens: int = 50


PLANS = (
    PolicyPlan("none"),
    PolicyPlan("static:4/frozen", speed=1.5, drafts=True, drift=0.01),
    PolicyPlan("static:4/online", speed=1.8, drafts=True, trains=True, drift=0.01, learned=0.02),
)
FOLDERS = ("none", "static-4-frozen", "static-4-online")


def write_training(path: Path, plans: tuple[PolicyPlan, ...] = PLANS, steps: int = 12) -> Path:
    """Write a comparison folder of the plans; folders are named as the live engine names them."""
    names = [plan.policy.replace(":", "-").replace("/", "-") for plan in plans]
    for name, plan in zip(names, plans, strict=True):
        write_policy(path / name, plan, steps)
    write_json(path / "comparison.json", Comparison(name="synthetic training", runs=tuple(names)))
    return path


def write_policy(path: Path, plan: PolicyPlan, steps: int = 12, compiled: int = 0) -> RunFolder:
    """Write the run folder of one policy."""
    made = _Policy(plan)
    for step in range(steps):
        made.add_step(step)
    folder = RunFolder(path)
    folder.write(
        Summary(
            kind="measured", name="synthetic", policy=plan.policy, model="tiny", gpu="H100", workers=WORKERS,
            gpus_per_worker=1, steps=steps, wall_s=made.at_s, response_tokens=made.tokens,
            cost_source="assumed: the arithmetic of a test", lengths_source="measured: natural lengths",
            acceptance_source="assumed", seed=1, tool_version="0",
            warnings=(f"{compiled} timed engine steps contain a compilation",) if compiled else (),
        ),
        pd.DataFrame(made.responses),
        pd.DataFrame(made.intervals, columns=["worker", "cause", "step", "start_s", "end_s"]),
        pd.DataFrame(made.steps),
    )  # fmt: skip
    for name, rows, columns in (
        ("rewards", made.rewards, REWARD_COLUMNS), ("updates", made.updates, UPDATE_COLUMNS),
        ("heads", made.heads, HEAD_COLUMNS), ("probes", made.probes, PROBE_COLUMNS),
    ):  # fmt: skip
        pd.DataFrame(rows, columns=list(columns)).astype(columns).to_parquet(path / f"{name}.parquet")
    rows = [[0] * len(ENGINE_STEP_COLUMNS)] * (2 + compiled)
    engine_steps = pd.DataFrame(rows, columns=list(ENGINE_STEP_COLUMNS)).astype(ENGINE_STEP_COLUMNS)
    engine_steps["compiled"] = [False, False] + [True] * compiled
    engine_steps.to_parquet(path / "engine_steps.parquet")
    with (path / "records.jsonl").open("wb") as file:
        recorder = Recorder(file.write)
        for owner, event in made.events:
            recorder.add(owner, event.t_s, event)
    write_json(path / "resolved_config.json", {"workers": {"count": WORKERS}})
    return folder


class _Policy:
    """The rows of one policy, step by step."""

    def __init__(self, plan: PolicyPlan) -> None:
        self.plan = plan
        self.at_s, self.tokens = 0.0, 0
        self.responses: list[dict] = []
        self.intervals: list[tuple] = []
        self.steps: list[dict] = []
        self.rewards: list[tuple] = []
        self.updates: list[dict] = []
        self.heads: list[tuple] = []
        self.probes: list[tuple] = []
        self.events: list[tuple[str, Event]] = []

    def add_step(self, step: int) -> None:
        """Add an RL step."""
        plan, start_s = self.plan, self.at_s
        rng = np.random.default_rng([plan.length_seed, step])
        lengths = np.minimum(rng.lognormal(5.0, 1.0, REQUESTS).astype(int) + 1, CAP_TOKENS)
        finish_s = start_s + PREFILL_S + lengths * TOKEN_S / plan.speed
        self._respond(step, start_s, lengths, finish_s)
        rollout_end_s = float(finish_s.max())
        handover_s = HANDOVER_S if plan.trains else 0.0
        self.at_s = self._phases(step, rollout_end_s + handover_s)
        for worker in range(WORKERS):
            self._roll_out(worker, step, start_s, float(finish_s[worker::WORKERS].max()), rollout_end_s)
        engine_steps, accepted = self._draft(step, start_s)
        version = -1 if not plan.drafts else (step if plan.trains else 0)
        self.steps.append({
            "step": step, "start_s": start_s, "rollout_end_s": rollout_end_s, "end_s": self.at_s,
            "request_steps": engine_steps, "accepted_tokens": accepted, "drafter_version": version,
            "drafter_age_steps": 0 if not plan.drafts else (min(step, 1) if plan.trains else step),
            "trained_tokens": 3_000 if plan.trains else 0,
        })  # fmt: skip
        facts = {
            "step": step, "handover_s": handover_s, "stop_s": STOP_S if plan.trains else 0.0,
            "publish_s": PUBLISH_S if plan.trains else 0.0, "scored_early": 6 if plan.trains else 0,
            "reward_mean": float(np.mean([row[2] for row in self.rewards if row[0] == step])),
        }  # fmt: skip
        self.updates.append({name: facts.get(name, 0.0) for name in UPDATE_COLUMNS})

    def _respond(self, step: int, start_s: float, lengths: np.ndarray, finish_s: np.ndarray) -> None:
        luck = np.random.default_rng([self.plan.luck_seed, step]).random(REQUESTS)
        for request, length in enumerate(lengths.tolist()):
            self.responses.append({
                "step": step, "request": request, "group": request // SAMPLES, "worker": request % WORKERS,
                "prompt_tokens": self.plan.prompt_tokens, "response_tokens": length,
                "truncated": length == CAP_TOKENS, "start_s": start_s, "finish_s": float(finish_s[request]),
            })  # fmt: skip
            right = float(luck[request] < 0.3 + 0.02 * step + self.plan.reward)
            self.rewards.append((step, request, right, step))
        self.tokens += int(lengths.sum())

    def _roll_out(self, worker: int, step: int, start_s: float, done_s: float, rollout_end_s: float) -> None:
        half_s = (start_s + PREFILL_S + done_s) / 2
        spans = [("prefill", start_s + PREFILL_S), ("decode", half_s)]
        spans.append(("speculate" if self.plan.drafts else "decode", done_s))
        trains = self.plan.trains and rollout_end_s - done_s > 2 * (ACTIVATION_S + EARLY_S)
        if trains:
            spans += [("drafter_activation", done_s + ACTIVATION_S)]
            spans += [("logprob", done_s + ACTIVATION_S + EARLY_S), ("drafter_training", rollout_end_s)]
            spans += [("drafter_stop", rollout_end_s + STOP_S)]
            self.heads += [(step, worker, 500, 3.0 - 0.1 * step), (step, worker, 500, 2.8 - 0.1 * step)]
        else:
            spans.append(("tail_idle", rollout_end_s))
        self._book(worker, step, start_s, [*spans, *self._after(rollout_end_s)])

    def _after(self, rollout_end_s: float) -> list[tuple[str, float]]:
        """Return the spans (cause, end) after the rollout."""
        at_s = rollout_end_s + (HANDOVER_S if self.plan.trains else 0.0)
        spans = [("preempt_wait", at_s)]
        for phase, seconds in PHASES_S.items():
            at_s += seconds
            spans.append((phase, at_s))
        if self.plan.trains:
            at_s += PUBLISH_S
            spans.append(("drafter_publish", at_s))
        return [*spans, ("weight_sync", at_s + SYNC_S)]

    def _phases(self, step: int, begin_s: float) -> float:
        """Return the end of the step; probe the heads if the policy drafts."""
        if self.plan.drafts:
            serving = PROBE + (self.plan.learned - self.plan.drift) * step
            for head, rate in (("serving", serving), ("initial", PROBE - self.plan.drift * step)):
                for position in range(DEPTH):
                    survival = rate ** (position + 1)
                    self.probes.append((step, head, position, survival + 0.01, survival))
        return begin_s + sum(PHASES_S.values()) + (PUBLISH_S if self.plan.trains else 0.0) + SYNC_S

    def _draft(self, step: int, start_s: float) -> tuple[int, int]:
        """Record what was drafted; returns request-steps and accepted tokens."""
        requests = tuple(Request(number, number // SAMPLES, 50) for number in range(REQUESTS))
        self.events.append((CLUSTER, StepBegan(start_s, step, requests)))
        engine_steps = accepted = 0
        for worker in range(WORKERS):
            owner = worker_owner(worker)
            self.events.append((owner, RolloutBegan(start_s, worker, step, 0)))
            if self.plan.drafts:
                rate = PROBE + (self.plan.learned - self.plan.drift) * step
                counts = tuple(round(ENGINE_STEPS * rate ** (position + 1)) for position in range(DEPTH))
                ended = DecisionEnded(
                    start_s, worker, chain(DEPTH), 500, ENGINE_STEPS, 1.0, counts, (), 1, 100
                )
                self.events.append((owner, ended))
                engine_steps, accepted = engine_steps + ENGINE_STEPS, accepted + sum(counts)
        return engine_steps, accepted

    def _book(self, worker: int, step: int, start_s: float, spans: list[tuple[str, float]]) -> None:
        at_s = start_s
        for cause, until_s in spans:
            if until_s > at_s:
                self.intervals.append((worker, cause, step, at_s, until_s))
                at_s = until_s
