"""An engine that keeps the Engine protocol and runs no model: a cost law, and acceptance by seeded draws."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from tlt.plugin.engine_step import EngineStepFacts, RequestDrafts, RequestPrompt
from tlt.realrun.config import RealConfig
from tlt.realrun.engine.protocol import EngineRequest
from tlt.traces.common.settings import merge
from tltsched.draft_config import OFF, DraftConfig
from tltsched.errors import InputError
from tltsched.step_times import DraftConfigTimes, StepTimeTable

SURVIVAL = 0.7  # each draft is accepted with this probability given the one before it
STEP_S, REQUEST_S, DRAFT_S, PROMPT_TOKEN_S = 1e-3, 1e-5, 2e-4, 1e-5


class Running(msgspec.Struct):
    """A request in the batch."""

    request: EngineRequest
    emitted: int = 0

    def context_tokens(self) -> int:
        return len(self.request.context) + self.emitted - 1 if self.emitted else 0

    def left(self) -> int:
        return self.request.response_tokens - len(self.request.resumed) - self.emitted


class FakeEngine:
    """Prefills what is admitted in one engine step, chunked; then decodes. Its clock is `now_s`."""

    def __init__(self, max_running: int, max_k: int, seed: int = 0, chunk_tokens: int = 10_000) -> None:
        self.max_running = max_running
        self.max_k = max_k
        self.chunk_tokens = chunk_tokens
        self.now_s = 0.0
        self.policy_version = self.drafter_version = 0
        self.warmed: set[tuple[int, int]] = set()
        self.stepped: list[int] = []
        self.dropped = 0  # how often its caches were
        self._rng = random.Random(seed)  # noqa: S311 -- acceptance draws
        self._waiting: list[EngineRequest] = []
        self._running: list[Running] = []
        self._prompt_left = 0
        self._admitted: list[RequestPrompt] = []
        self._drafted = 0  # in the engine step before, per request
        self._done: dict[int, tuple[int, ...]] = {}

    def clock(self) -> float:
        return self.now_s

    def own_weights(self) -> Mapping[str, Any]:
        return {}

    def withdraw(self, requests: Sequence[int]) -> dict[int, tuple[int, ...]]:
        taken: dict[int, tuple[int, ...]] = {each.id: () for each in self._waiting if each.id in requests}
        taken |= {
            each.request.id: (7,) * each.emitted for each in self._running if each.request.id in requests
        }
        begun = [each for each in self._running if each.request.id in taken and not each.emitted]
        self._prompt_left -= min(self._prompt_left, sum(len(each.request.context) for each in begun))
        self._waiting = [each for each in self._waiting if each.id not in taken]
        self._running = [each for each in self._running if each.request.id not in taken]
        return taken

    def load_policy(self, weights: Mapping[str, Any], version: int, kv_kept: bool = False) -> None:
        del weights
        assert kv_kept or not self.pending()
        self.policy_version = version

    def load_drafter(self, weights: Mapping[str, Any], version: int) -> None:
        del weights
        assert not self.pending()
        self.drafter_version = version

    def drop_caches(self) -> None:
        assert not self.pending()
        self.dropped += 1

    def warm_up(self, batches: Sequence[int], ks: Sequence[int]) -> None:
        self.warmed = {(batch, k) for batch in batches for k in ks}

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        self._waiting += requests

    def pending(self) -> int:
        return len(self._waiting) + len(self._running)

    def running(self) -> tuple[int, int]:
        return len(self._running), sum(running.context_tokens() for running in self._running)

    def responses(self) -> dict[int, tuple[int, ...]]:
        done, self._done = self._done, {}
        return done

    def abort_all(self) -> None:
        self._waiting, self._running = [], []

    def close(self) -> None:
        self.abort_all()

    def step(self, k: int) -> EngineStepFacts:
        assert self.pending()
        assert 0 <= k <= self.max_k
        self.stepped.append(k)
        while self._waiting and len(self._running) < self.max_running:
            request = self._waiting.pop(0)
            self._running.append(Running(request))
            self._prompt_left += len(request.context)
            self._admitted.append(RequestPrompt(request.id, len(request.context), 0))
        requests, context = self.running()
        if self._prompt_left:
            return self._prefill(requests, context)
        seconds = STEP_S + REQUEST_S * requests + DRAFT_S * (self._drafted + k)
        accepted = [0] * self._drafted
        drafts = []
        for running in self._running:
            before = running.emitted
            running.emitted += 1
            for position in range(self._drafted):
                if self._rng.random() >= SURVIVAL:
                    break
                accepted[position] += 1
                running.emitted += 1
            if self._drafted:
                gained = running.emitted - before - 1
                position = len(running.request.resumed) + before
                drafts.append(RequestDrafts(running.request.id, position, self._drafted, gained))
        drafted, self._drafted = self._drafted * requests, k
        return self._facts(seconds, requests, context, 0, drafted, tuple(accepted), tuple(drafts))

    def _prefill(self, requests: int, context: int) -> EngineStepFacts:
        tokens = min(self._prompt_left, self.chunk_tokens)
        self._prompt_left -= tokens
        if not self._prompt_left:
            for running in self._running:
                running.emitted += 1
        self._drafted = 0
        prompts, self._admitted = tuple(self._admitted), []
        return self._facts(tokens * PROMPT_TOKEN_S, requests, context, tokens, 0, (), prompts=prompts)

    def _facts(
        self, seconds: float, batch: int, context: int, prompt: int, drafted: int, accepted: tuple[int, ...],
        drafts: tuple[RequestDrafts, ...] = (), prompts: tuple[RequestPrompt, ...] = (),
    ) -> EngineStepFacts:  # fmt: skip
        self.now_s += seconds
        finished = [running.request for running in self._running if running.left() <= 0]
        self._done |= {
            request.id: (7,) * (request.response_tokens - len(request.resumed)) for request in finished
        }
        self._running = [running for running in self._running if running.request not in finished]
        ids = tuple(request.id for request in finished)
        return EngineStepFacts(
            seconds, batch, context, prompt, drafted, accepted, ids, drafts=drafts, prompts=prompts
        )


def make_engine(config: RealConfig, speculating: bool) -> FakeEngine:
    """Return a fake engine, as an engine factory does."""
    return FakeEngine(config.engine.max_running, max(config.drafter.ks) if speculating else 0)


def make_at_home(config: RealConfig, speculating: bool) -> FakeEngine:
    """Return one where the driver stands, who left a file there; raises FileNotFoundError elsewhere."""
    Path("here.txt").read_bytes()
    return make_engine(config, speculating)


class EndingEngine(FakeEngine):
    """Ends a response of natural length where its sampling seed says."""

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        super().submit([each if each.forced else self._ending(each) for each in requests])

    def _ending(self, request: EngineRequest) -> EngineRequest:
        assert request.seed is not None
        ends = 2 + request.seed % (2 * request.response_tokens)
        return msgspec.structs.replace(request, response_tokens=min(ends, request.response_tokens))


def make_ending_engine(config: RealConfig, speculating: bool) -> FakeEngine:
    """Return an engine that ends responses itself."""
    return EndingEngine(config.engine.max_running, max(config.drafter.ks) if speculating else 0)


class OverlongEngine(FakeEngine):
    """Generates one token more than the most that was asked for."""

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        longer = [
            msgspec.structs.replace(each, response_tokens=each.response_tokens + 1) for each in requests
        ]
        super().submit(longer)


def make_overlong_engine(config: RealConfig, speculating: bool) -> FakeEngine:
    """Return an engine that does not keep to limits."""
    return OverlongEngine(config.engine.max_running, max(config.drafter.ks) if speculating else 0)


class MortalEngine(FakeEngine):
    """Kills its process at a given engine step if it is the first to take the file that orders it.

    FAKE_KILL in the environment names the file, FAKE_KILL_AT the engine step, counted over the life of the
    process.
    """

    def step(self, k: int) -> EngineStepFacts:
        facts = super().step(k)
        if len(self.stepped) == int(os.environ["FAKE_KILL_AT"]):
            with suppress(FileNotFoundError):
                Path(os.environ["FAKE_KILL"]).unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return facts


def make_mortal(config: RealConfig, speculating: bool) -> FakeEngine:
    """Return an engine that dies on order."""
    return MortalEngine(config.engine.max_running, max(config.drafter.ks) if speculating else 0)


class SlowEngine(FakeEngine):
    """Takes real time: ten milliseconds an engine step."""

    def step(self, k: int) -> EngineStepFacts:
        time.sleep(0.01)
        return super().step(k)


class StuckEngine(FakeEngine):
    """Holds a semaphore, as the progress bars of real engines do, and hears nothing in its engine steps."""

    def warm_up(self, batches: Sequence[int], ks: Sequence[int]) -> None:
        self.lock = multiprocessing.get_context("spawn").RLock()
        super().warm_up(batches, ks)

    def step(self, k: int) -> EngineStepFacts:
        time.sleep(600)
        return super().step(k)


def make_stuck(config: RealConfig, speculating: bool) -> FakeEngine:
    """Return an engine that holds a semaphore and hears nothing."""
    return StuckEngine(config.engine.max_running, max(config.drafter.ks) if speculating else 0)


class PausingEngine(FakeEngine):
    """Stands still for a minute in its fifth engine step."""

    def step(self, k: int) -> EngineStepFacts:
        facts = super().step(k)
        return msgspec.structs.replace(facts, seconds=facts.seconds + 60.0 * (len(self.stepped) == 5))


def make_pausing(config: RealConfig, speculating: bool) -> FakeEngine:
    """Return an engine that stands still once."""
    return PausingEngine(config.engine.max_running, max(config.drafter.ks) if speculating else 0)


def make_slow(config: RealConfig, speculating: bool) -> FakeEngine:
    """Return an engine that takes real time."""
    return SlowEngine(config.engine.max_running, max(config.drafter.ks) if speculating else 0)


def make_ranked(config: RealConfig, speculating: bool) -> FakeEngine:
    """Return an engine that takes real time and has a process of its own, as a rank is."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    return make_slow(config, speculating)


class BrokenEngine(FakeEngine):
    """Raises in its fifth engine step."""

    def step(self, k: int) -> EngineStepFacts:
        if len(self.stepped) == 5:
            raise MemoryError("no memory is left")
        return super().step(k)


def make_broken(config: RealConfig, speculating: bool) -> FakeEngine:
    """Return an engine that fails."""
    return BrokenEngine(config.engine.max_running, max(config.drafter.ks) if speculating else 0)


def make_refusing(config: RealConfig, speculating: bool) -> FakeEngine:
    """Refuse the configuration."""
    raise InputError("model.folder", config.model.folder, "a model", "prepare one")


def config_of(folder: Path, **sections: Any) -> RealConfig:
    """Return a small configuration whose model folder is in `folder`."""
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text('{"vocab_size": 100}', encoding="utf-8")
    settings: dict[str, Any] = {
        "model": {"folder": str(model), "random_weights": True},
        "drafter": {"ks": [0, 1, 2, 3, 4]},
        "engine": {"max_running": 8},
        "workload": {"requests": 12, "rollouts": 2, "longest_tokens": 64, "prompt_tokens": 8},
    }
    return msgspec.convert(merge(settings, sections), RealConfig)


def flat_times(draft_configs: tuple[DraftConfig, ...], max_requests: int) -> StepTimeTable:
    """Return the fake engine's own cost law as calibrated step times."""

    def step_s(draft: DraftConfig, requests: int) -> float:
        return STEP_S + REQUEST_S * requests + 2 * DRAFT_S * draft.depth

    drafts = dict.fromkeys((OFF, *draft_configs))
    counts = range(max_requests + 1)
    return StepTimeTable(
        tuple(DraftConfigTimes(draft, tuple(step_s(draft, count) for count in counts)) for draft in drafts)
    )
