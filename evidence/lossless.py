"""Does speculation change what is sampled at temperature 1? `python -m evidence.lossless`

Draws the same number of responses from a tiny model without speculation and with each drafter, and compares
them (evidence.lossless_sampling). Two controls say what the test can see: a second sample without
speculation, which must not differ, and drafts accepted at a fixed rate whatever the target says, which must.
Writes lossless.json. Needs the extra real-cpu; some minutes on one core.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from evidence.lossless_sampling import Drawn, compare, draw
from evidence.recording import OTHERS, device, write
from tlt.realrun.config import DrafterConfig, EngineConfig, ModelConfig, RealConfig
from tlt.realrun.engine import vllm_compat
from tlt.realrun.engine.vllm_engine import make_engine
from tlt.realrun.models.drafter import make_draft_model, make_head
from tlt.realrun.models.target import prepare_model

VOCAB = 64  # small, so that pairs of tokens are seen often enough to be compared
REQUESTS = 12_500
TOKENS = 9  # of a response; the first is not compared
BATCH = 64
KS = (0, 1, 2, 4)
EXCHANGES = 2000
PROMPT = tuple(range(1, 9))
P_LIMIT = 0.05


def config_of(root: Path, kind: str, survival: tuple[float, ...] = (), seed: int = 0) -> RealConfig:
    """Return the settings of one sample; the models are made on first use."""
    model = prepare_model("tiny", root / "tiny", vocab=VOCAB)
    folder = ""
    if kind == "eagle3":
        folder = str(make_head(model, root / "head", draft_vocab=VOCAB // 2))
    elif kind == "draft_model":
        folder = str(make_draft_model(model, root / "draft"))
    return RealConfig(
        seed=seed,
        model=ModelConfig(folder=str(model), name="tiny", dtype="float32"),
        drafter=DrafterConfig(kind=kind, folder=folder, ks=KS, synthetic_survival=survival),  # type: ignore[arg-type]
        engine=EngineConfig(
            max_running=BATCH, max_context_tokens=64, kv_gigabytes=0.1, eager=True, temperature=1.0
        ),
    )


def sample(config: RealConfig, *, speculating: bool) -> Drawn:
    """Draw the responses of one sample, with K changing every engine step if there is speculation."""
    engine = make_engine(config, speculating=speculating)
    drawn = draw(engine, PROMPT, REQUESTS, TOKENS, KS[::-1] if speculating else (0,), BATCH)
    engine.close()
    return drawn


def main() -> None:
    """Draw, compare, print and write the record."""
    value: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        plain = sample(config_of(root, "ngram"), speculating=False)
        samples = {
            "no speculation again": sample(config_of(root, "ngram", seed=1), speculating=False),
            **{kind: sample(config_of(root, kind, seed=2), speculating=True)
               for kind in ("eagle3", "draft_model", "ngram")},
            "accepting half of all drafts": sample(
                config_of(root, "draft_model", (0.5, 0.4, 0.3, 0.2), seed=3), speculating=True
            ),
        }  # fmt: skip
    ps = {}
    for name, drawn in samples.items():
        verdict = compare(plain.tokens, drawn.tokens, VOCAB, EXCHANGES, np.random.default_rng(0))
        ps[name] = min(verdict.p_tokens, verdict.p_pairs)
        value |= {
            f"{name}: p by place": round(verdict.p_tokens, 4),
            f"{name}: p of pairs": round(verdict.p_pairs, 4),
            f"{name}: chi-square by place": round(verdict.chi_square_tokens, 1),
            f"{name}: accepted": round(
                drawn.accepted_tokens / drawn.drafted_tokens if drawn.drafted_tokens else 0.0, 3
            ),
        }
        print(name, verdict, drawn.accepted_tokens, drawn.drafted_tokens, flush=True)
    *honest, dishonest = ps
    # Two tests of each sample: the limit is shared out among all of them.
    limit = P_LIMIT / (2 * len(honest))
    write(
        "lossless",
        timed=True,
        claim=f"at temperature 1 a tiny model (vocabulary {VOCAB}, float32) samples the same with and "
        f"without speculation: {REQUESTS * (TOKENS - 1):,} tokens of each, K changing every engine step",
        value=value,
        unit={OTHERS: "", **{name: "share of drafts" for name in value if name.endswith("accepted")}},
        target=f"every drafter p > {limit:.4f} ({P_LIMIT} over all tests); the last sample is wrong on "
        "purpose and must stay under it",
        met=all(ps[name] > limit for name in honest) and ps[dishonest] < limit,
        how=f"measured; p is the share of {EXCHANGES:,} random exchanges that differ as much, so "
        f"that the smallest p is {1 / (EXCHANGES + 1):.4f}",
        measured_on=f"{device()}, vLLM 0.32 for CPU",
        command="python -m evidence.lossless",
        versions={"vllm": vllm_compat.installed_version(), "numpy": np.__version__},
    )


if __name__ == "__main__":
    main()
