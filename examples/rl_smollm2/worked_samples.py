"""Worked solutions as token ids, made by processes beside the training one. Needs neither torch nor vllm."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from tlt.realrun.models.folder import turn_ends
from tlt.realrun.problems.questions import chat, load_tokenizer
from tlt.traces.common.seeds import Stream
from tltsched.errors import InputError

from .families import WARM_UP, make_problem
from .settings import TaskSettings
from .worked import solve

CHUNK = 256  # problems that a process makes at a time
AHEAD = 2  # chunks that wait for each process
_MARK = "QUESTION"


class WorkedSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A prompt and the response that warm-up teaches, the token that ends a turn included."""

    task: str
    prompt: tuple[int, ...]
    response: tuple[int, ...]


class Template(msgspec.Struct, frozen=True):
    """What stands around a question in a model's chat template, and what turns text into token ids."""

    tokenizer: str  # the file
    before: str
    after: str
    end: int  # the token that ends a turn


def template_of(folder: Path) -> Template:
    """Return the template of a model folder.

    Raises InputError if it has no tokenizer with one, or one that ends a turn where no engine would: what is
    taught then never ends.
    """
    tokenizer = load_tokenizer(folder)
    if not tokenizer.chat_template or tokenizer.eos_token_id is None:
        allowed = "a tokenizer with a chat template and a token that ends a turn"
        raise InputError("model", str(folder), allowed, "take an instruction-tuned model")
    ends = turn_ends(folder)
    if tokenizer.eos_token_id not in ends:
        raise InputError(
            "model", f"{folder}, whose tokenizer ends a turn with token {tokenizer.eos_token_id}",
            f"{' or '.join(map(str, ends)) or 'an eos_token_id of its own'}, where engines end responses",
            "correct eos_token in tokenizer_config.json, or prepare the model again",
        )  # fmt: skip
    text = tokenizer.apply_chat_template(chat(_MARK), add_generation_prompt=True, tokenize=False)
    before, _, after = text.partition(_MARK)
    return Template(str(folder / "tokenizer.json"), before, after, int(tokenizer.eos_token_id))


def make_samples(
    template: Template, settings: TaskSettings, seed: int, stream: Stream, start: int, number: int
) -> list[WorkedSample]:
    """Return the worked solutions of problems `start` to `start` + `number` of a stream."""
    problems = [make_problem(settings, seed, 0, index, stream) for index in range(start, start + number)]
    tokenizer = _tokenizer(template.tokenizer)
    prompts = _encode(
        tokenizer, [template.before + problem.question + template.after for problem in problems]
    )
    responses = _encode(tokenizer, [solve(problem) for problem in problems])
    return [
        WorkedSample(problem.task, tuple(prompt), (*response, template.end))
        for problem, prompt, response in zip(problems, prompts, responses, strict=True)
    ]


def sample_stream(
    template: Template, settings: TaskSettings, seed: int, processes: int, stream: Stream = WARM_UP
) -> Generator[WorkedSample]:
    """Yield samples without end, the same ones for any number of processes; close it to end them."""
    if processes == 0:
        for start in count(0, CHUNK):
            yield from make_samples(template, settings, seed, stream, start, CHUNK)
    # A forked process would share the GPU's driver state.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_begin)
    try:
        waiting: deque[Future[bytes]] = deque()
        for start in count(0, CHUNK):
            waiting.append(pool.submit(_make_chunk, template, settings, seed, stream, start))
            if len(waiting) > AHEAD * processes:
                yield from msgspec.msgpack.decode(waiting.popleft().result(), type=list[WorkedSample])
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallel part
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the training process ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # it was killed: nobody else would end this process


def _make_chunk(template: Template, settings: TaskSettings, seed: int, stream: Stream, start: int) -> bytes:
    return msgspec.msgpack.encode(make_samples(template, settings, seed, stream, start, CHUNK))


def _encode(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    return [found.ids for found in tokenizer.encode_batch(texts, add_special_tokens=False)]


@lru_cache(maxsize=2)
def _tokenizer(file: str) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(file)
