"""Published rows of asynchronous training beside the synchronous row that each belongs to, as their sources
print them. No number here was chosen by its effect on a prediction.
"""

from __future__ import annotations

import msgspec

VERL = "verl documentation, fully_async (H20, dapo-math-17k)"
NEMO = "NeMo-RL v0.4, performance summary (DGX-H100, OpenMathInstruct-2) and its recipes"


class Synchronous(msgspec.Struct, frozen=True, kw_only=True):
    """A row of all GPUs in turn. Seconds of an RL step; None: not printed."""

    gpus: int
    tp: int
    step_s: float
    gen_s: float | None = None
    logprob_s: float | None = None
    update_s: float | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """An asynchronous row: where its GPUs are, how it is run, what a step took."""

    name: str
    source: str
    model: str
    gpu: str
    prompts: int
    samples: int
    mean_tokens: float | None  # of a response; None: not printed
    max_tokens: int
    prompt_tokens: int
    synchronous: Synchronous
    rollout_gpus: int
    trainer_gpus: int
    tp: int
    schedule: str  # settings of bounded_async beside trainer_share
    parts: int  # simulated steps of one of the source's
    step_s: float
    update_s: float | None = None
    reference_s: float = 0.0  # of the trainers' other passes
    tools: bool = False  # waits of tools are in it, and nobody says how long

    @property
    def speedup(self) -> float:
        """Return what was published, at equal numbers of GPUs."""
        return self.synchronous.step_s / self.step_s


def _verl(
    name: str, sync: Synchronous, trainer_gpus: int, step_s: float, update_s: float, **more: object
) -> Row:
    settings: dict[str, object] = {
        "source": VERL, "model": "Qwen2.5-7B", "gpu": "H20", "prompts": 512, "samples": 16,
        "mean_tokens": None, "max_tokens": 28672, "prompt_tokens": 512, "tp": 4, "parts": 4,
        "schedule": "staleness=0.5,sync_every=4",
    }  # fmt: skip
    settings |= more
    return Row(
        name=name, synchronous=sync, rollout_gpus=sync.gpus - trainer_gpus, trainer_gpus=trainer_gpus,
        step_s=step_s, update_s=update_s, **settings,  # type: ignore[arg-type]
    )  # fmt: skip


_SYNC_32 = Synchronous(gpus=32, tp=4, step_s=790.10, gen_s=357.41, logprob_s=107.71, update_s=269.80)
_SYNC_64 = Synchronous(gpus=64, tp=4, step_s=365.28, gen_s=150.72, logprob_s=70.26, update_s=133.41)
_SYNC_128 = Synchronous(gpus=128, tp=4, step_s=356.30, gen_s=177.85, logprob_s=53.92, update_s=113.81)
_SYNC_30B = Synchronous(gpus=128, tp=4, step_s=497.89, gen_s=348.05, logprob_s=49.59, update_s=86.27)
_SYNC_TOOLS = Synchronous(gpus=32, tp=4, step_s=375.47, gen_s=228.03, logprob_s=35.19, update_s=111.84)
_SYNC_16 = Synchronous(gpus=16, tp=2, step_s=484.62, gen_s=52.94, logprob_s=0.0, update_s=430.26)
VERL_ROWS = (
    _verl("7B, 16:16", _SYNC_32, 16, 294.77, 313.81),
    _verl("7B, 32:32", _SYNC_64, 32, 189.26, 156.98),
    _verl("7B, 64:64, staleness 0.5", _SYNC_128, 64, 150.63, 113.16),
    _verl("7B, 64:64, staleness 0.3", _SYNC_128, 64, 146.11, 103.22, schedule="staleness=0.3,sync_every=4"),
    _verl("7B, 64:64, staleness 0.1", _SYNC_128, 64, 171.30, 109.12, schedule="staleness=0.1,sync_every=4"),
    _verl("7B, 64:64, staleness 0", _SYNC_128, 64, 231.34, 98.77, schedule="staleness=0,sync_every=4"),
    _verl("30B-A3B, 96:32", _SYNC_30B, 32, 282.75, 206.63, model="Qwen3-30B-A3B", max_tokens=8192,
          reference_s=50.05),
    _verl("7B with tools, 16:16", _SYNC_TOOLS, 16, 221.36, 179.58, prompts=64, max_tokens=8192,
          schedule="staleness=1,sync_every=4", tools=True),
    _verl("7B, 8:8", _SYNC_16, 8, 489.95, 435.87, max_tokens=10240, tp=2),
)  # fmt: skip


def _nemo(name: str, model: str, sync: Synchronous, gpus: int, tp: int, step_s: float, mean_tokens: float,
          max_tokens: int, prompts: int, samples: int, in_flight: bool) -> Row:  # fmt: skip
    pause = "pause=keep,kv=stale" if in_flight else "pause=wait"
    return Row(
        name=name, source=NEMO, model=model, gpu="H100", prompts=prompts, samples=samples,
        mean_tokens=mean_tokens, max_tokens=max_tokens, prompt_tokens=128, synchronous=sync,
        rollout_gpus=gpus // 2, trainer_gpus=gpus // 2, tp=tp, parts=1, step_s=step_s,
        schedule=f"staleness=1,order=admission,{pause}",
    )  # fmt: skip


# Mean lengths are those of the asynchronous rows, prompts in them (taken as 128 tokens).
NEMO_ROWS = (
    _nemo("Llama-3.1-8B", "Llama-3.1-8B", Synchronous(gpus=16, tp=1, step_s=97.7), 16, 1, 74.6, 1129, 4096,
          64, 32, False),
    _nemo("DeepSeek-V3", "DeepSeek-V3", Synchronous(gpus=256, tp=32, step_s=154.0), 512, 32, 77.9, 744, 1536,
          16, 32, True),
    _nemo("Qwen3-235B", "Qwen3-235B-A22B", Synchronous(gpus=128, tp=16, step_s=506.0), 256, 8, 241.0, 5691,
          8192, 16, 32, False),
    _nemo("Qwen3-30B-A3B", "Qwen3-30B-A3B", Synchronous(gpus=32, tp=4, step_s=225.0), 32, 2, 244.0, 3158,
          4096, 64, 32, True),
    _nemo("Qwen3-32B", "Qwen3-32B", Synchronous(gpus=32, tp=4, step_s=393.0), 64, 4, 215.0, 3207, 4096,
          64, 32, True),
)  # fmt: skip
