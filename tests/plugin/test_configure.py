"""What an engine is told so that K may change: speculation, a table with every K in it, graphs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tlt.plugin import install
from tlt.plugin.settings import Settings
from tltsched.errors import InputError

DRAFTS = {"method": "ngram", "num_speculative_tokens": 4}
POLICY = "goodput:off+1+4"


def arguments(**given: Any) -> Any:
    """Return what the plugin touches of vLLM's EngineArgs."""
    return SimpleNamespace(
        **{
            "speculative_config": None, "additional_config": {}, "cudagraph_capture_sizes": None,
            "max_num_seqs": 16, "enforce_eager": False, "data_parallel_size": 1,
            "compilation_config": SimpleNamespace(cudagraph_capture_sizes=None),
        } | given
    )  # fmt: skip


def settings(**more: Any) -> Settings:
    return Settings(**({"out": "x", "mode": "control", "policy": POLICY} | more))


@pytest.fixture(autouse=True)
def _on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "_is_cuda", lambda: True)


def test_speculation_of_the_settings_is_put_where_none_was_asked_for() -> None:
    asked = arguments()
    assert install.configure(asked, settings(speculation=DRAFTS))
    assert asked.speculative_config == DRAFTS | {install.TABLE: [(1, 1, 0), (2, 2, 1), (3, 16, 4)]}
    assert asked.additional_config[install.OURS] == {"own_k": 0, "configured": True, "table": True}


def test_what_the_framework_asked_for_is_kept_and_gets_a_table() -> None:
    own = DRAFTS | {"method": "eagle3", "num_speculative_tokens": 3}
    asked = arguments(speculative_config=own, additional_config={"other": 1})
    assert install.configure(asked, settings(speculation=DRAFTS, policy="static:2"))
    assert asked.speculative_config == own | {install.TABLE: [(1, 1, 0), (2, 2, 2), (3, 16, 3)]}
    assert asked.additional_config == {
        "other": 1, install.OURS: {"own_k": 3, "configured": False, "table": True},
    }  # fmt: skip
    assert own == DRAFTS | {"method": "eagle3", "num_speculative_tokens": 3}  # the framework's is untouched


def test_a_table_of_the_framework_is_left_alone() -> None:
    own = DRAFTS | {install.TABLE: [(1, 4, 4), (5, 16, 0)]}
    asked = arguments(speculative_config=own)
    assert install.configure(asked, settings())
    assert asked.speculative_config == own
    assert asked.additional_config[install.OURS]["table"] is False


def test_it_is_told_once() -> None:
    asked = arguments()
    install.configure(asked, settings(speculation=DRAFTS))
    told, drafts = dict(asked.additional_config), dict(asked.speculative_config)
    assert not install.configure(asked, settings(speculation=DRAFTS))
    assert (asked.additional_config, asked.speculative_config) == (told, drafts)


@pytest.mark.parametrize("given", [{}, {"spec_method": "mtp"}, {"data_parallel_size": 2}])
def test_nothing_is_changed_where_nothing_can_be(given: dict[str, Any]) -> None:
    asked = arguments(**given)
    assert not install.configure(asked, settings(speculation=DRAFTS if given else {}))
    assert asked.speculative_config is None


def test_a_graph_is_captured_for_each_k_at_each_batch() -> None:
    asked = arguments()
    install.configure(asked, settings(speculation=DRAFTS))
    assert asked.cudagraph_capture_sizes[:6] == [1, 2, 4, 5, 8, 10]
    assert asked.cudagraph_capture_sizes[-1] == 16 * 5


@pytest.mark.parametrize(
    ("given", "more"),
    [
        ({"enforce_eager": True}, {}),
        ({"max_cudagraph_capture_size": 64}, {}),
        ({"compilation_config": SimpleNamespace(cudagraph_capture_sizes=[1, 2])}, {}),
        ({}, {"graphs": "stock"}),
    ],
)
def test_graphs_that_were_chosen_stay(given: dict[str, Any], more: dict[str, Any]) -> None:
    asked = arguments(**given)
    assert install.configure(asked, settings(speculation=DRAFTS, **more))
    assert asked.cudagraph_capture_sizes is None


def test_a_policy_that_vllm_cannot_follow_leaves_the_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    asked = arguments(speculative_config=DRAFTS)
    with pytest.raises(InputError, match="chains"):
        install.configure(asked, settings(policy="tlt"))
    made = install._configured(lambda given: given.speculative_config, settings(policy="tlt"))
    assert made(asked) == DRAFTS
    assert "as it was asked for" in capsys.readouterr().err


def test_a_configuration_that_vllm_refuses_is_taken_back(capsys: pytest.CaptureFixture[str]) -> None:
    def make(given: Any) -> str:
        if given.speculative_config is not None:
            raise ValueError("no such drafter")
        return "an engine"

    asked = arguments()
    assert install._configured(make, settings(speculation=DRAFTS))(asked) == "an engine"
    assert asked.additional_config == {}
    assert "no such drafter" in capsys.readouterr().err
