"""What a step asks the engines for: prompts, longest or forced lengths, and a seed for each response."""

from __future__ import annotations

from pathlib import Path

from tlt.realrun.engine.protocol import EngineRequest
from tlt.realrun.problems.load import kinds_of, load_problems
from tlt.realrun.training_config import TrainConfig
from tlt.traces.common.seeds import response_seed
from tlt.traces.runs.runfolder import RESPONSE_COLUMNS, read_table
from tltsched.errors import InputError

READ = ("step", "request", "response_tokens")


class RequestSource:
    """The requests of every step; a response's id is its group times G plus its place in the group."""

    def __init__(self, config: TrainConfig) -> None:
        """Raises InputError if prompts cannot be made, or forced lengths do not fit."""
        self.config = config
        self._problems = load_problems(config)
        path = config.rollout.forced_lengths
        self._forced = _forced_lengths(Path(path), config) if path else None
        most = config.engine.max_context_tokens
        if config.rollout.max_response_tokens >= most:
            raise InputError(
                "rollout.max_response_tokens", config.rollout.max_response_tokens,
                f"less than {most} (engine.max_context_tokens)",
                "lower it, or raise engine.max_context_tokens so that a prompt fits as well",
            )  # fmt: skip

    def kinds(self, step: int) -> tuple[str, ...]:
        """Return the kind of each prompt of an RL step; none if the problems do not say."""
        return kinds_of(self._problems, step)

    def requests(self, step: int) -> tuple[EngineRequest, ...]:
        """Return the requests of an RL step, ordered by id."""
        samples, longest = self.config.rollout.samples, self.config.rollout.max_response_tokens
        requests = []
        for group, prompt in enumerate(self._problems.prompts(step)):
            for sample in range(samples):
                number = group * samples + sample
                seed = response_seed(self.config.seed, step, number)
                forced = self._forced[step, number] if self._forced is not None else None
                length = forced or longest
                requests.append(EngineRequest(number, prompt, length, forced is not None, seed, group))
        return tuple(requests)


def _forced_lengths(path: Path, config: TrainConfig) -> dict[tuple[int, int], int]:
    try:
        table = read_table(path, {name: RESPONSE_COLUMNS[name] for name in READ})
    except InputError as error:
        raise InputError(
            "rollout.forced_lengths", str(path), "a responses.parquet of a run folder", f"check it: {error}"
        ) from None
    least = int(table["response_tokens"].min()) if len(table) else 1
    if least < 1:
        raise InputError(
            "rollout.forced_lengths", f"{least} in {path}", "lengths of a token or more", "check it"
        )
    lengths = {(step, request): tokens for step, request, tokens in table.to_numpy().tolist()}
    wanted = config.rollout.prompts * config.rollout.samples
    missing = [
        (step, request)
        for step in range(config.steps)
        for request in range(wanted)
        if (step, request) not in lengths
    ]
    if missing:
        step, request = missing[0]
        raise InputError(
            "rollout.forced_lengths", f"{path} without step {step}, request {request}",
            f"{config.steps} steps of {wanted} responses",
            "take a run of the same size, or train fewer steps",
        )  # fmt: skip
    return lengths
