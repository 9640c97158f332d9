"""A job of two engines that goes on: the facts that the plugin writes of it, or its metrics, and six faults.

Each step is a rollout of 96 requests, 32 at once an engine, with K drafts each accepted with probability 0.6
given the one before; then policy and drafter get new weights. A fault begins with step `begins`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from tlt.plugin.facts import (
    ENGINE,
    ENGINES,
    FACTS,
    STEP_TIMES,
    AnyFact,
    EngineFacts,
    Finished,
    RolloutOver,
    RolloutStarted,
    Slept,
    Step,
    Weights,
    Woke,
)
from tlt.traces.runs.runfolder import write_json
from tltsched.draft_config import OFF, chain
from tltsched.step_times import DraftConfigTimes, StepTimeTable

FAULTS = (
    "acceptance 0 after sleep", "drafter never updated", "wrong K", "graph fall-back", "starving engine",
    "preemption storm",
)  # fmt: skip
RUNNING, REQUESTS, SURVIVAL, PROMPT = 32, 96, 0.6, 40


def seconds_of(batch: int, k: int) -> float:
    """Return what an engine step takes; deep drafts cost more than they give at large batches."""
    return 0.006 + 0.0001 * batch + (0.0004 * k + 0.00012 * batch * k if k else 0.0)


def step_times() -> StepTimeTable:
    """Return the step times that the engines decide by."""
    rows = [
        DraftConfigTimes(draft, tuple(seconds_of(batch, draft.depth) for batch in range(RUNNING + 1)))
        for draft in (OFF, chain(2))
    ]
    return StepTimeTable(tuple(rows))


@dataclass
class FakeJob:
    """Lives one step at a time; `facts` are those of the newest step by engine."""

    seed: int
    fault: str = ""
    begins: int = 4
    now_s: float = 0.0
    step: int = 0
    drafter: int = 0
    facts: list[list[AnyFact]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def live(self) -> None:
        """Roll out one step and take the trainer's."""
        bad = self.fault if self.step >= self.begins else ""
        self.facts = [[], []]
        shares = (REQUESTS - 2, 2) if bad == FAULTS[4] else (REQUESTS // 2, REQUESTS // 2)
        ends_s = [self._rollout(engine, shares[engine], bad) for engine in (0, 1)]
        self.now_s = max(ends_s) + 5.0
        self.step += 1
        fresh = not (self.fault == FAULTS[1] and self.step > self.begins)
        self.drafter += fresh
        for facts in self.facts:
            if fresh:
                facts.append(Weights(t_s=self.now_s, what="drafter", policy_version=self.step - 1,
                                     drafter_version=self.drafter))  # fmt: skip
            facts.append(Weights(t_s=self.now_s, what="policy", policy_version=self.step,
                                 drafter_version=self.drafter))  # fmt: skip
            if self.fault == FAULTS[0] and self.step == self.begins:
                facts += [Slept(t_s=self.now_s, level=1), Woke(t_s=self.now_s + 0.5)]
        self.now_s += 1.0

    def _rollout(self, engine: int, requests: int, bad: str) -> float:
        facts, rng, t_s = self.facts[engine], self.rng, self.now_s
        k, survival = 8 if bad == FAULTS[2] else 2, 0.0 if bad == FAULTS[0] else SURVIVAL
        facts.append(RolloutStarted(t_s=t_s, rollout=self.step, policy_version=self.step,
                                    drafter_version=self.drafter))  # fmt: skip
        lengths = np.clip(np.rint(40 * np.exp(0.7 * rng.standard_normal(requests))), 5, 200).astype(int)
        queue, running, waiting_tokens = list(enumerate(lengths)), dict[int, float](), dict[int, float]()
        before = 0
        while queue or running:
            prompts = 0
            while queue and len(running) < RUNNING:
                number, length = queue.pop(0)
                running[number], prompts, before = float(length), prompts + PROMPT, 0
                waiting_tokens[number] = t_s
            batch, drafted = len(running), before * len(running)
            preempted = 4 if bad == FAULTS[5] and batch > 8 else 0
            seconds = seconds_of(batch, before) * float(rng.uniform(0.97, 1.03)) + prompts * 2e-5
            graph = "PIECEWISE" if prompts else "FULL"
            if bad == FAULTS[3] and not prompts:
                seconds, graph = 2 * seconds, "NONE"
            accepted, alive = [], np.full(batch, True)
            for _ in range(before):
                alive = alive & (rng.random(batch) < survival)
                accepted.append(int(alive.sum()))
            facts.append(
                Step(t_s=t_s, seconds=seconds, batch=batch, context_tokens=90 * batch, k=k,
                     prompt_tokens=prompts + 200 * preempted, drafted_tokens=drafted,
                     accepted_by_position=tuple(accepted), waiting=len(queue), preempted=preempted,
                     graph=graph)
            )  # fmt: skip
            t_s += seconds
            gained = 1 + sum(accepted) / batch
            running = {number: left - gained for number, left in running.items()}
            for number in [number for number, left in running.items() if left <= 0]:
                del running[number]
                facts.append(
                    Finished(t_s=t_s, request=self.step * 1000 + number, name=f"r{number}", rollout=self.step,
                             prompt=number // 4, prompt_tokens=PROMPT, response_tokens=int(lengths[number]),
                             reason="stop", arrived_s=self.now_s, started_s=waiting_tokens[number])
                )  # fmt: skip
            before = k
        facts.append(RolloutOver(t_s=t_s, rollout=self.step, reason="weights"))
        return t_s

    def write(self, folder: Path) -> None:
        """Append the newest step to the folder of the job."""
        folder.mkdir(exist_ok=True)
        write_json(folder / STEP_TIMES, step_times())
        for engine, facts in enumerate(self.facts):
            place = folder / ENGINES / f"{engine:04}"
            place.mkdir(parents=True, exist_ok=True)
            if not (place / ENGINE).is_file():
                write_json(place / ENGINE, about(engine))
            with (place / FACTS).open("ab") as file:
                file.writelines(msgspec.json.encode(fact) + b"\n" for fact in facts)


def about(engine: int) -> EngineFacts:
    """Return who an engine is."""
    return EngineFacts(
        number=engine, name="job", mode="watch", policy="static:2", engine="vLLM", engine_version="0.32.0",
        plugin_version="0", model="m", device="one H100", gpus=1, host="h", pid=1, started_unix_s=1e9,
        max_running=RUNNING, method="eagle3", max_drafts=2, graphs="FULL_AND_PIECEWISE",
    )  # fmt: skip


class FakeMetrics:
    """The same job behind two URLs: a reading every second of its rollouts."""

    def __init__(self, job: FakeJob) -> None:
        self.job = job
        self.t_s = 0.0
        self._steps: list[list[Step]] = [[], []]
        self._all: list[list[Step]] = [[], []]

    def advance(self, seconds: float) -> bool:
        """Let time go by; returns whether the job is at its fault by now."""
        self.t_s += seconds
        while self.job.now_s <= self.t_s + 1.0:
            self.job.live()
            for engine, facts in enumerate(self.job.facts):
                self._all[engine] += [fact for fact in facts if isinstance(fact, Step)]
        return bool(self.job.fault) and self.job.step > self.job.begins

    def get(self, url: str) -> bytes:
        """Return the exposition of one engine at this time."""
        done = [step for step in self._all[int(url[-1])] if step.t_s + step.seconds <= self.t_s]
        on = [step for step in self._all[int(url[-1])] if step.t_s <= self.t_s < step.t_s + step.seconds]
        drafting = [step for step in done if step.drafted_tokens]
        depth = max((len(step.accepted_by_position) for step in drafting), default=0)
        accepted = [
            sum((step.accepted_by_position + (0,) * depth)[place] for step in drafting)
            for place in range(depth)
        ]
        values: dict[str, float] = {
            "vllm:num_requests_running": on[0].batch if on else 0,
            "vllm:num_requests_waiting": on[0].waiting if on else 0,
            "vllm:num_preemptions_total": sum(step.preempted for step in done),
            "vllm:generation_tokens_total": sum(step.batch + sum(step.accepted_by_position) for step in done),
            "vllm:prompt_tokens_total": sum(step.prompt_tokens for step in done),
            "vllm:iteration_tokens_total_count": len(done),
            "vllm:spec_decode_num_drafts_total": sum(step.batch for step in drafting),
            "vllm:spec_decode_num_draft_tokens_total": sum(step.drafted_tokens for step in drafting),
            "vllm:spec_decode_num_accepted_tokens_total": sum(accepted),
            "vllm:kv_cache_usage_perc": (on[0].context_tokens if on else 0) / 16_000,
        }  # fmt: skip
        labels = 'model_name="m",engine="0"'
        lines = [f"{name}{{{labels}}} {value}" for name, value in values.items()]
        lines += [f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{place}"}} {count}'
                  for place, count in enumerate(accepted)]  # fmt: skip
        lines.append('vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="1000"} 1.0')
        return "\n".join(["# HELP vllm:num_requests_running x", *lines]).encode()
