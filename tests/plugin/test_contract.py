"""The plugin in the pinned version of vLLM, one engine: `make versions` holds every version to more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.realrun.small_models import need_vllm
from tlt.analysis.crosscheck.decisions import replay_decisions
from tlt.plugin.versions import KNOWN
from tlt.realrun.engine import vllm_compat
from tlt.realrun.models.target import prepare_model
from tlt.traces.live.engines import read_engines
from tlt.traces.live.run_folder import collect

pytestmark = pytest.mark.slow
TOKENS = (4, 4, 12, 12, 24, 24, 40, 40)
K_OF = {1: 3, 2: 3, 3: 1, 4: 1}  # as POLICY says; 0 above
SETTINGS = """
mode = "control"
out = "job"
policy = "vllm_table:1-2=3+3-4=1+5-8=0"
[speculation]
method = "ngram"
num_speculative_tokens = 3
prompt_lookup_max = 2
prompt_lookup_min = 1
"""
# In a process of its own, for what the plugin wraps stays wrapped; registered by hand, so that the test does
# not hang on how the project was installed.
SCRIPT = f"""
import sys
for name in ("torchvision", "torchaudio", "torchcodec"):
    sys.modules.setdefault(name, None)
from vllm.engine import arg_utils
from tlt import plugin
plugin.register()
from vllm import LLM, SamplingParams
llm = LLM(sys.argv[1], skip_tokenizer_init=True, dtype="float32", max_model_len=128, max_num_seqs=8,
          enforce_eager=True, enable_prefix_caching=False, seed=0)
prompts = [dict(prompt_token_ids=[3 + i % 4, 5, 6, 5, 6, 5]) for i in range({len(TOKENS)})]
params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True, detokenize=False) for n in {TOKENS}]
done = llm.generate(prompts, params, use_tqdm=False)
assert [len(each.outputs[0].token_ids) for each in done] == list({TOKENS})
llm.reset_prefix_cache()
llm.llm_engine.engine_core.shutdown()
"""


def test_the_plugin_chooses_k_in_a_stock_engine(tmp_path: Path) -> None:
    need_vllm()
    model = prepare_model("tiny", tmp_path / "tiny", vocab=512)
    (tmp_path / "tlt.toml").write_text(SETTINGS)
    environment = os.environ | vllm_compat.EVERYWHERE | vllm_compat.ON_CPU
    environment |= {
        "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1",
        "TLT_PLUGIN": str(tmp_path / "tlt.toml"), "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(model)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "tlt:" not in ran.stderr
    (log,) = read_engines(tmp_path / "job")
    (rollout,) = log.rollouts
    decoding = [step for step in rollout.steps if not step.prompt_tokens]
    assert [step.k for step in decoding] == [K_OF.get(step.batch, 0) for step in decoding]
    assert {step.k for step in decoding} == {0, 1, 3}
    assert sum(step.drafted_tokens for step in decoding) > 0
    assert sorted(done.response_tokens for done in rollout.done) == sorted(TOKENS)
    assert rollout.reason == "caches"
    assert collect(tmp_path / "job").response_tokens == sum(TOKENS)
    assert replay_decisions(tmp_path / "job").difference is None


def test_the_pinned_version_is_one_that_the_plugin_knows() -> None:
    assert ".".join(vllm_compat.VERSION.split(".")[:2]) in KNOWN
