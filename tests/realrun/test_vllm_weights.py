"""New weights for a live vLLM engine: they are served, the old ones come back, and text never depends on drafts."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.realrun.small_models import KS, need_vllm, requests, run, tiny_config


pytestmark = pytest.mark.filterwarnings("ignore")  # of the engine's own libraries


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_vllm()
    return tmp_path_factory.mktemp("weights")


def test_weights_of_policy_and_head_are_swapped_and_restored(root: Path) -> None:
    import torch
    from safetensors.torch import load_file

    from realrun.vllm_engine import make_engine

    config = tiny_config(root)
    engine = make_engine(config, True)
    lengths = [20, 31, 12]

    def text() -> tuple[dict[int, tuple[int, ...]], int]:
        facts = run(engine, requests(lengths), (KS[-1],))
        return engine.responses(), sum(sum(each.accepted_by_position) for each in facts)

    policy = load_file(Path(config.model.folder) / "model.safetensors")
    head = load_file(Path(config.drafter.folder) / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    moved = {
        name: weight + 0.5 * weight.std() * torch.randn(weight.shape, generator=generator)
        if weight.dim() == 2
        else weight
        for name, weight in policy.items()
    }
    before, accepted = text()
    engine.load_policy(moved, 1)
    changed, _ = text()
    assert changed != before
    engine.load_policy(policy, 2)
    assert text() == (before, accepted)
    # A head that always predicts what is said next would need training; a zero one drafts token 0.
    engine.load_drafter({name: torch.zeros_like(weight) for name, weight in head.items()}, 1)
    same, of_zero = text()
    assert same == before
    engine.load_drafter(head, 2)
    assert text() == (before, accepted)
    assert of_zero != accepted or accepted == 0
    engine.submit(requests([5]))
    with pytest.raises(RuntimeError, match="pending"):
        engine.load_policy(policy, 3)
    engine.abort_all()
    engine.close()
