"""What every policy generates: the same prompts, and the same lengths or as long as the model says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import pandas as pd

from tlt.realrun.config import RealConfig
from tlt.realrun.driver.sessions import LiveTurn
from tlt.realrun.driver.write_run import natural_lengths
from tlt.realrun.engine.protocol import EngineRequest
from tlt.realrun.problems.load import kinds_of, load_problems
from tlt.realrun.prompts import make_prompts, vocabulary
from tlt.traces.common.seeds import PROMPTS, generator, response_seed
from tlt.traces.lengths.files import write_trace
from tlt.traces.lengths.generate import generate
from tlt.traces.lengths.schema import KIND_LABELS, Origin, Trace
from tlt.traces.lengths.shipped import load_histogram, load_trace
from tlt.traces.sessions.files import read_sessions, write_sessions
from tlt.traces.sessions.schema import Sessions
from tlt.traces.sessions.turns import CUT_ENDS, ENDS, Session
from tltsched.errors import InputError

TURNS = "turns.parquet"  # of a comparison folder: the sessions that were replayed
CUT_NAMES = tuple(ENDS[code] for code in CUT_ENDS)
SHORTEST_TOKENS = 2  # the first token comes out of prefill: a response of one is never decoded


class Workload(Protocol):
    """The requests of all rollouts; ids count from 0 in each."""

    rollouts: list[tuple[EngineRequest, ...]]

    def describe(self) -> str:
        """Return one line that says where the lengths come from."""

    def truncated(self, step: int, request: int, tokens: int) -> bool:
        """Return whether a response of so many tokens was cut."""

    def kinds(self, step: int) -> tuple[str, ...]:
        """Return the kind of each prompt of a rollout; none where they are not known."""

    def turns(self, step: int) -> dict[int, tuple[LiveTurn, ...]]:
        """Return the turns of each request of a rollout; none where requests are single responses."""

    def write(self, out: Path) -> None:
        """Write to the comparison folder `out` what is known of the lengths before anything runs."""


def workload_of(config: RealConfig) -> Workload:
    """Return what a replay generates; raises InputError where a request does not fit the engine."""
    if config.sessions.file:
        return RecordedSessions(config)
    return NaturalLengths(config) if config.tasks.given else RecordedLengths(config)


class RecordedLengths:
    """Lengths that are forced on all policies alike."""

    def __init__(self, config: RealConfig) -> None:
        """Draw lengths and prompts from the seed, or take them from a trace file (`workload.replay_steps`).

        Raises InputError if a request does not fit the engine.
        """
        trace = _recorded(config) if config.workload.replay_steps else _lengths(config)
        rows, origin = trace.rows.copy(), trace.origin
        self.rollouts: list[tuple[EngineRequest, ...]] = []
        for rollout, mine in rows.groupby("step", sort=True):
            requests = _requests(config, int(str(rollout)), mine)
            lengths = np.array([len(request.prompt_token_ids) for request in requests], np.int32)
            rows.loc[mine.index, "prompt_tokens"] = lengths
            self.rollouts.append(requests)
        self.trace = Trace(rows, origin)
        self._cut = {int(str(step)): mine["truncated"].tolist() for step, mine in rows.groupby("step")}
        longest = int((rows["prompt_tokens"] + rows["response_tokens"]).max())
        _check_fits(config, longest, "drawn", "workload.longest_tokens or workload.max_response_tokens")

    def describe(self) -> str:
        """Return one line that says where the lengths come from."""
        return describe_origin(self.trace.origin)

    def truncated(self, step: int, request: int, tokens: int) -> bool:
        """Return whether the response was cut where it was recorded."""
        del tokens
        return bool(self._cut[step][request])

    def kinds(self, step: int) -> tuple[str, ...]:
        """Return none: recorded lengths come without."""
        del step
        return ()

    def turns(self, step: int) -> dict[int, tuple[LiveTurn, ...]]:
        """Return none."""
        del step
        return {}

    def write(self, out: Path) -> None:
        """Write the lengths to `out`."""
        write_trace(self.trace, out / "lengths.parquet", force=True)


class RecordedSessions:
    """Sessions of a file: all that is decoded is forced, and tools take as long as the file says.

    First prompts are those of the model's problems or, like what tools return, random tokens.
    """

    def __init__(self, config: RealConfig) -> None:
        """Read the sessions; raises InputError for waits that are not known and contexts that do not fit."""
        self._sessions = recorded_sessions(config.sessions.file, config.workload.rollouts)
        self._turns: list[dict[int, tuple[LiveTurn, ...]]] = []
        self.rollouts: list[tuple[EngineRequest, ...]] = []
        vocab = vocabulary(Path(config.model.folder))
        for rollout in range(config.workload.rollouts):
            rng = generator(config.seed, PROMPTS, rollout)
            requests, turns = _session_requests(self._of(rollout), vocab, rng)
            self.rollouts.append(requests)
            self._turns.append(turns)
        _check_fits(config, int(self._sessions.context_tokens.max()), "of sessions", "the sessions' tokens")

    def _of(self, rollout: int) -> list[Session]:
        mine = self._sessions.step == np.unique(self._sessions.step)[rollout]
        return [self._sessions.session(int(row)) for row in np.flatnonzero(mine)]

    def describe(self) -> str:
        """Return one line that says where the sessions come from."""
        return f"sessions: {describe_origin(self._sessions.origin)}"

    def truncated(self, step: int, request: int, tokens: int) -> bool:
        """Return whether the session was cut where it was recorded."""
        del tokens
        return self._of(step)[request].turns[-1].end in CUT_NAMES

    def kinds(self, step: int) -> tuple[str, ...]:
        """Return none: sessions come without."""
        del step
        return ()

    def turns(self, step: int) -> dict[int, tuple[LiveTurn, ...]]:
        """Return the turns of each request of a rollout."""
        return self._turns[step]

    def write(self, out: Path) -> None:
        """Write the sessions to `out`."""
        write_sessions(self._sessions, out / TURNS, force=True)


class NaturalLengths:
    """Problems whose responses end where the model ends them: as long as they turn out, by policy.

    Prompts and sampling seeds are those of all policies; with drafts, tokens follow from the drafts too.
    """

    def __init__(self, config: RealConfig) -> None:
        """Make the problems (`tasks`); raises InputError if one does not fit the engine."""
        samples, self._longest = config.workload.samples_per_prompt, config.workload.max_response_tokens
        self._problems = load_problems(config)
        self.rollouts = [
            tuple(
                EngineRequest(
                    number, prompt, self._longest, forced=False,
                    seed=response_seed(config.seed, rollout, number), group=group,
                )
                for group, prompt in enumerate(self._problems.prompts(rollout))
                for number in range(group * samples, (group + 1) * samples)
            )
            for rollout in range(config.workload.rollouts)
        ]  # fmt: skip
        longest = max(len(each.prompt_token_ids) for requests in self.rollouts for each in requests)
        _check_fits(config, longest + self._longest, "asked", "workload.max_response_tokens")

    def describe(self) -> str:
        """Return one line that says where the lengths come from."""
        return natural_lengths(self._longest)

    def truncated(self, step: int, request: int, tokens: int) -> bool:
        """Return whether the response ended at the limit."""
        del step, request
        return tokens >= self._longest

    def kinds(self, step: int) -> tuple[str, ...]:
        """Return the kind of each prompt of a rollout, as the problems say."""
        return kinds_of(self._problems, step)

    def turns(self, step: int) -> dict[int, tuple[LiveTurn, ...]]:
        """Return none."""
        del step
        return {}

    def write(self, out: Path) -> None:
        """Write nothing: each policy's run folder has its own lengths."""


def _check_fits(config: RealConfig, longest: int, how: str, remedy: str) -> None:
    if longest > config.engine.max_context_tokens:
        raise InputError(
            "engine.max_context_tokens", config.engine.max_context_tokens,
            f"{longest:,} or more, the longest prompt and response {how}", f"raise it, or lower {remedy}",
        )  # fmt: skip


def describe_origin(origin: Origin) -> str:
    """Return one line: source, kind, note."""
    return " ".join(part for part in (f"{origin.source} ({KIND_LABELS[origin.kind]}).", origin.note) if part)


def _requests(config: RealConfig, rollout: int, rows: pd.DataFrame) -> tuple[EngineRequest, ...]:
    """Return the requests of one rollout; those of a group have the same prompt."""
    groups, first = pd.factorize(rows["prompt_id"])[0], ~rows["prompt_id"].duplicated()
    wanted = rows["prompt_tokens"].to_numpy()[first.to_numpy()].tolist()
    prompts = make_prompts(config, wanted, generator(config.seed, PROMPTS, rollout))
    alone = len(prompts) == len(rows)
    return tuple(
        EngineRequest(index, prompts[group], length, group=-1 if alone else group)
        for index, (group, length) in enumerate(
            zip(groups.tolist(), rows["response_tokens"].tolist(), strict=True)
        )
    )


def recorded_sessions(file: str, rollouts: int) -> Sessions:
    """Return the first steps of a file of sessions; raises InputError: too few, or waits are not known."""
    sessions = read_sessions(Path(file))
    steps = np.unique(sessions.step)
    if len(steps) < rollouts:
        allowed = f"at most the {len(steps)} steps of {file}"
        raise InputError("workload.rollouts", rollouts, allowed, "lower it")
    chosen = sessions.chosen(np.isin(sessions.step, steps[:rollouts]))
    if np.isnan(chosen.wait_s).any():
        unknown = int(np.isnan(chosen.wait_s).sum())
        raise InputError(
            "wait_s", f"{unknown:,} turns of {file} not known", "seconds of every turn",
            "give a law for them: `tlt trace convert --law wait_s=LAW`",
        )  # fmt: skip
    return chosen


def _session_requests(
    sessions: Sequence[Session], vocab: int, rng: np.random.Generator
) -> tuple[tuple[EngineRequest, ...], dict[int, tuple[LiveTurn, ...]]]:
    """Return the sessions of a rollout as requests, and their turns; those of a group share a prompt."""
    requests, turns, prompts = [], {}, dict[int, tuple[int, ...]]()
    for number, session in enumerate(sessions):
        mine, context = [], 0
        for place, turn in enumerate(session.turns):
            given = tuple(rng.integers(1, vocab, turn.input_tokens).tolist())
            if not place:
                shared = prompts.setdefault(session.prompt_id, given)
                given = shared if len(shared) == len(given) else given
            kept = context if turn.kept_tokens is None else turn.kept_tokens
            mine.append(LiveTurn(given, kept, turn.response_tokens, turn.wait_s))
            context = kept + turn.input_tokens + turn.response_tokens
        tokens = sum(turn.response_tokens for turn in session.turns)
        requests.append(EngineRequest(number, mine[0].input_ids, tokens, group=session.prompt_id))
        turns[number] = tuple(mine)
    return tuple(requests), turns


def _recorded(config: RealConfig) -> Trace:
    """Return the first rollouts of a trace file as they are; raises InputError if it has too few."""
    workload = config.workload
    trace = load_trace(workload.lengths)
    steps = sorted(trace.rows["step"].unique().tolist())
    if len(steps) < workload.rollouts:
        raise InputError(
            "workload.rollouts",
            workload.rollouts,
            f"at most the {len(steps)} steps of {workload.lengths}",
            "lower it",
        )
    rows = trace.rows[trace.rows["step"].isin(steps[: workload.rollouts])].reset_index(drop=True)
    prompts = rows["prompt_tokens"].where(rows["prompt_tokens"] > 0, workload.prompt_tokens)
    lengths = rows["response_tokens"].clip(SHORTEST_TOKENS, workload.max_response_tokens)
    numbered = rows["step"].map({step: number for number, step in enumerate(steps)})
    return Trace(
        rows.assign(step=numbered, prompt_tokens=prompts, response_tokens=lengths).astype(rows.dtypes),
        trace.origin,
    )


def _lengths(config: RealConfig) -> Trace:
    workload = config.workload
    trace = generate(
        load_histogram(workload.lengths),
        steps=workload.rollouts,
        prompts_per_step=config.prompts,
        samples_per_prompt=workload.samples_per_prompt,
        max_response_tokens=workload.max_response_tokens,
        prompt_tokens=workload.prompt_tokens,
        seed=config.seed,
    )
    lengths = trace.rows["response_tokens"].to_numpy()
    note = trace.origin.note
    factor = workload.longest_tokens / int(lengths.max()) if workload.longest_tokens else 1.0
    if workload.longest_tokens:
        note += f" Scaled by {factor:.4g}, so that the longest is {workload.longest_tokens:,} tokens."
    scaled = np.maximum(np.rint(lengths * factor), SHORTEST_TOKENS).astype(np.int32)
    origin = msgspec.structs.replace(trace.origin, note=note, max_response_tokens=None if factor != 1.0 else
                                     trace.origin.max_response_tokens)  # fmt: skip
    return Trace(trace.rows.assign(response_tokens=scaled), origin)
