"""Answers questions about engine steps with AISimulate. Run by AISimulate's own interpreter, never imported.

    ENVIRONMENT/bin/python -I aisimulate_answers.py < QUESTIONS.json

QUESTIONS.json holds `subject` and `questions` of tlt.sim.borrowed.questions. A line a question is answered;
the last line says by whom. Only the standard library and AISimulate (Apache-2.0) are used.
"""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import json
import sys
from collections.abc import Callable
from typing import Any

PACKAGE = "aisimulate"
# An estimate is the mean over so many tokens; it is centred on the context that was asked for.
STEPS = 32


def remember_yaml() -> None:
    """Let each text of YAML be parsed once: AISimulate parses its whole catalogue anew for every estimate."""
    yaml: Any = importlib.import_module("yaml")
    parse = yaml.safe_load
    known: dict[Any, Any] = {}

    def safe_load(stream: Any) -> Any:
        text = stream.read() if hasattr(stream, "read") else stream
        if text not in known:
            known[text] = parse(text)
        return copy.deepcopy(known[text])

    yaml.safe_load = safe_load


def estimate(ask: Callable[..., Any], subject: dict[str, Any], question: dict[str, Any]) -> Any:
    """Return AISimulate's estimate of one engine step; raises whatever it raises."""
    prefill, k = question["kind"] == "prefill", question["k"]
    context = question["context_tokens"]
    arguments: dict[str, Any] = {
        "model_path": subject["model"], "system_name": subject["system"], "backend_name": subject["engine"],
        "batch_size": question["batch"], "tp_size": subject["tp"],
        "mode": "static_ctx" if prefill else "static_gen",
        "isl": context if prefill else context - STEPS // 2, "osl": STEPS + 1,
    }  # fmt: skip
    if subject["experts_parallel"] is not None:
        arguments["moe_ep_size"] = subject["experts_parallel"]
        arguments["moe_tp_size"] = subject["tp"] // subject["experts_parallel"]
    if k:
        arguments["speculative"] = {
            "method": "eagle3", "params": {"num_speculative_tokens": k},
            "draft_config": subject["draft_config"], "accepted_tokens": k / 2,
        }  # fmt: skip
    return ask(**arguments)


def seconds_of(found: Any, question: dict[str, Any]) -> float:
    """Return the seconds of the engine step: an estimate is in milliseconds a token or a first token."""
    if question["kind"] == "prefill":
        return float(found.ttft) / 1e3
    accepted: float = question["k"] / 2
    return float(found.tpot) * (1.0 + accepted) / 1e3  # as many tokens as are said to be accepted


def main() -> None:
    """Read the questions, and write an answer a line as it is found."""
    lines, sys.stdout = sys.stdout, sys.stderr  # what AISimulate prints is no answer
    asked = json.load(sys.stdin)
    remember_yaml()
    ask = importlib.import_module("aisimulate.legacy_cli.api").cli_estimate
    engine_version = ""
    for question in asked["questions"]:
        try:
            found = estimate(ask, asked["subject"], question)
            answer: dict[str, Any] = {"seconds": seconds_of(found, question)}
            engine_version = str(found.backend_version)
        except Exception as error:
            answer = {"refused": " ".join(f"{type(error).__name__}: {error}".split())[:400]}
        print(json.dumps(answer), file=lines, flush=True)
    table = {"name": "AISimulate", "version": importlib.metadata.version(PACKAGE),
             "engine_version": engine_version}  # fmt: skip
    print(json.dumps(table), file=lines, flush=True)


if __name__ == "__main__":
    main()
