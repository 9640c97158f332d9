"""What is proposed for a name that there is not: never another thing with figures of its own."""

from __future__ import annotations

import pytest

from tltsched.errors import InputError, look_up

GPUS = dict.fromkeys(("A100", "H100", "H200", "B200", "H20", "L40"), 1)
MODELS = dict.fromkeys(("Qwen2.5-7B", "Qwen2.5-32B", "Llama-3-8B"), 1)
CALIBRATIONS = dict.fromkeys(("vllm-0.32-h100-qwen2.5-7b", "paper-qwen32b-tp4"), 1)


@pytest.mark.parametrize("name", ["H800", "A800", "B100", "H2000", "L4", "GB200", "A10"])
def test_no_gpu_is_proposed_for_another(name: str) -> None:
    with pytest.raises(InputError, match="none of these has its figures"):
        look_up(GPUS, "hardware.gpu", name, things=True)


@pytest.mark.parametrize("name", ["Qwen3-8B", "Qwen2.5-72B", "Llama-3.1-8B", "Qwen3-32B"])
def test_no_model_of_another_size_is_proposed(name: str) -> None:
    with pytest.raises(InputError, match="none of these has its figures"):
        look_up(MODELS, "hardware.model", name, things=True)


@pytest.mark.parametrize(
    "name", ["vllm-0.32-h200-qwen2.5-7b", "vllm-0.32-h100-qwen2.5-14b", "paper-qwen32b-tp8"]
)
def test_no_step_times_of_another_gpu_model_or_tp_are_proposed(name: str) -> None:
    with pytest.raises(InputError) as caught:
        look_up(CALIBRATIONS, "calibration", name, things=True)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "meant", "table"),
    [
        ("h100", "H100", GPUS), ("Qwen2.5-7b", "Qwen2.5-7B", MODELS),
        ("Qwen2.5-7B-Instruct", "Qwen2.5-7B", MODELS),
        ("paper-qwen32-tp4", "paper-qwen32b-tp4", CALIBRATIONS),
    ],
)  # fmt: skip
def test_another_way_to_write_the_same_is_proposed(name: str, meant: str, table: dict[str, int]) -> None:
    with pytest.raises(InputError, match=f"did you mean '{meant}'"):
        look_up(table, "x", name, things=True)


def test_what_was_not_given_is_called_nothing() -> None:
    error = InputError("--calibration", None, "a calibration.json", "give it")
    assert str(error) == "got nothing for --calibration; allowed: a calibration.json; give it"
