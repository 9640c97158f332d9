"""What the driver costs over the bare engine: `python -m evidence.hook_overhead MODEL_FOLDER NAME`

Both run in this process with the same settings and no speculation: vLLM's own engine and scheduler stepped in
a loop, and the same through VllmEngine and the scheduled worker under the policy `none`. They alternate, so
that drift of the machine meets both. Needs the extra real-cpu; writes hook_overhead_NAME.json.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median

from evidence.recording import OTHERS, device, write
from tlt.realrun.config import EngineConfig, ModelConfig, RealConfig
from tlt.realrun.engine import vllm_compat
from tlt.realrun.engine.protocol import EngineRequest
from tlt.realrun.engine.vllm_engine import make_engine
from tlt.realrun.engine.vllm_settings import engine_arguments
from tlt.realrun.workers.worker import Worker
from tlt.traces.common.seeds import scheduler_rng
from tltsched.event_log import RecordedWorker, Recorder
from tltsched.policies import parse_policy
from tltsched.worker import WorkerScheduler

ROUNDS = 25
REQUESTS, TOKENS = 8, 48
PROMPT = tuple(range(3, 19))


def bare_s(engine: object, number: int) -> float:
    """Return the seconds of one rollout on vLLM's own engine."""
    from vllm import SamplingParams

    for index in range(REQUESTS):
        params = SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=1.0, detokenize=False)
        engine.add_request(f"{number}-{index}", {"prompt_token_ids": list(PROMPT)}, params)  # type: ignore[attr-defined]
    start_s = time.perf_counter()
    while engine.has_unfinished_requests():  # type: ignore[attr-defined]
        engine.step()  # type: ignore[attr-defined]
    return time.perf_counter() - start_s


def main(folder: str, name: str) -> None:
    """Measure and write the record."""
    config = RealConfig(
        model=ModelConfig(folder=folder, name=name, dtype="bfloat16"),
        engine=EngineConfig(max_running=REQUESTS, max_context_tokens=256, kv_gigabytes=0.3, eager=True),
    )
    ours = make_engine(config, speculating=False)
    vllm_compat.prepare(config.engine)
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    bare = LLMEngine.from_engine_args(EngineArgs(**engine_arguments(config, speculating=False)))
    lines: list[bytes] = []
    spec = parse_policy("none")
    scheduler = WorkerScheduler(0, spec.build(scheduler_rng(0, 0), None))
    worker = Worker(
        RecordedWorker(scheduler, Recorder(lines.append)), ours, time.perf_counter, lambda _: None
    )
    requests = [EngineRequest(index, PROMPT, TOKENS) for index in range(REQUESTS)]
    pairs = []
    for number in range(ROUNDS + 1):
        plain_s = bare_s(bare, number)
        start_s = time.perf_counter()
        worker.rollout(number, requests)
        driven_s = time.perf_counter() - start_s
        if number:  # the first round warms both up
            pairs.append((plain_s, driven_s))
    ratios = sorted(driven_s / plain_s - 1 for plain_s, driven_s in pairs)
    write(
        f"hook_overhead_{Path(name).name.lower().replace('.', '-')}",
        timed=True,
        claim=f"driver and scheduler over the bare engine, vLLM 0.32 on CPU, {name}, batch {REQUESTS}, "
        "no speculation",
        value={
            "median": round(median(ratios), 4),
            "lowest": round(ratios[0], 4),
            "highest": round(ratios[-1], 4),
            "an engine step": round(1e3 * median(plain_s for plain_s, _ in pairs) / TOKENS, 2),
        },
        unit={OTHERS: "share of the bare time", "an engine step": "ms"},
        target="median at most 1 %",
        met=median(ratios) <= 0.01,
        how=f"measured, {ROUNDS} alternating rollouts",
        measured_on=f"{device()}, vLLM 0.32 for CPU",
        command=f"python -m evidence.hook_overhead MODEL_FOLDER {name}",
    )  # fmt: skip
    ours.close()


if __name__ == "__main__":
    main(*sys.argv[1:3])
