"""GPUs by name, by file, and by what a driver calls them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tlt.traces.catalogue.gpus import gpu_of, gpu_spec, sheets
from tltsched.errors import InputError

OWN = 'name = "Mine"\nbf16_teraflops = 500\nmemory_gb = 96\nmemory_gb_per_s = 3000\nsource = "a sheet"\n'


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA H100 PCIe", "H100-PCIe"), ("NVIDIA H200", "H200"),
        ("NVIDIA H20", "H20"), ("NVIDIA A100-SXM4-40GB", "A100-40GB"), ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A800-SXM4-80GB", "A800"), ("NVIDIA L40S", "L40S"), ("NVIDIA L40", "L40"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"), ("NVIDIA GB200", "GB200"), ("NVIDIA B200", "B200"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"), ("NVIDIA RTX A6000", "A6000"),
        ("AMD Instinct MI300X OAM", "MI300X"), ("Ascend910B3", "Ascend-910B"), ("2 x H800", "H800"),
    ],
)  # fmt: skip
def test_a_device_is_known_by_what_its_driver_says(device: str, name: str) -> None:
    found = gpu_of(device)
    assert found is not None
    assert found.name == name


def test_an_unknown_device_is_no_gpu() -> None:
    assert gpu_of("Intel(R) Xeon(R) Processor") is None


def test_every_sheet_says_where_it_is_from_and_no_two_share_a_name() -> None:
    names = [name for sheet in sheets().values() for name in (sheet.name, *sheet.also)]
    assert len(names) == len(set(names)) >= 15
    assert all(sheet.source.startswith(("published: ", "reported, ")) for sheet in sheets().values())


def test_rates_widen_where_a_gpu_lacks_them() -> None:
    assert gpu_spec("A100").flops("fp8") == 312e12
    assert gpu_spec("H100").flops("fp4") == gpu_spec("H100").flops("fp8") == 1979e12
    assert gpu_spec("B200").flops("fp4") == 9000e12


def test_an_own_file_is_a_gpu(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(OWN + "link_gb_per_s = 400\n", encoding="utf-8")
    spec = gpu_spec(str(file))
    assert (spec.bf16_flops, spec.memory_bytes, spec.link_bytes_per_s) == (500e12, 96e9, 200e9)
    assert spec.flops("fp8") == 500e12


@pytest.mark.parametrize(
    "text",
    ["", OWN + "surprise = 1\n", OWN.replace("96", "-1"), OWN.replace("96", "inf"), "name = ", OWN[:40]],
)
def test_a_file_without_the_figures_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="bf16_teraflops"):
        gpu_spec(str(file))


@pytest.mark.parametrize("name", ["H801", "B100", "L4", "RTX-3090", "V100"])
def test_an_unknown_gpu_is_told_how_to_give_its_own(name: str) -> None:
    with pytest.raises(InputError, match="path of a file") as caught:
        gpu_spec(name)
    assert "did you mean" not in str(caught.value)
