"""Sums over processes, and what happens when one of them is gone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
collective = pytest.importorskip("tlt.realrun.training.policy.collective")

ROOT = Path(__file__).parents[3]
HOST = "127.0.0.1"
SIZES = ((3, 7), (90,), (1,), (250,), (2, 2))


@contextmanager
def peer(port: int, device: str, body: str, timeout_s: float) -> Iterator[Any]:
    """Run `body` in another process, in which `group` is rank 1 of 2; gives rank 0."""
    program = (
        "import os, sys, torch\n"
        "from tlt.realrun.training.policy import collective\n"
        "print('ready', flush=True)\n"
        f"if {device!r} == 'cuda': torch.cuda.set_device(1)\n"
        f"group = collective.Collective(1, 2, {HOST!r}, {port}, {device!r}, {timeout_s})\n{body}\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program], cwd=ROOT, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        group = collective.Collective(0, 2, HOST, port, device, timeout_s)
        yield group
        group.close()
        process.stdin.close()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def need_two_gpus(device: str) -> None:
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("two GPUs are needed for NCCL")


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_sums_are_the_same_on_all_ranks(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_two_gpus(device)
    monkeypatch.setattr(collective, "BUCKET_ELEMENTS", 100)
    saved = tmp_path / "sums.safetensors"
    body = (
        "from safetensors.torch import save_file\n"
        "from tests.realrun.training.test_collective import inputs\n"
        f"collective.BUCKET_ELEMENTS, tensors = 100, inputs(1, {device!r})\n"
        "group.sum_(tensors)\n"
        f"save_file({{str(i): t for i, t in enumerate(tensors)}}, {str(saved)!r})\n"
        "group.close()"
    )
    with peer(collective.free_port(), device, body, 60.0) as group:
        mine = inputs(0, device)
        mine[0] = torch.nn.Parameter(mine[0])  # whose values change although it asks for a gradient
        group.sum_(mine)
    from safetensors.torch import load_file

    theirs = load_file(saved)
    for number, (found, a, b) in enumerate(zip(mine, inputs(0, device), inputs(1, device), strict=True)):
        assert torch.equal(found.detach().cpu(), theirs[str(number)])
        torch.testing.assert_close(found.detach(), a + b)


def inputs(rank: int, device: str) -> list[Any]:
    """Return what a rank brings: several buckets and two formats."""
    generator = torch.Generator().manual_seed(rank)
    floats = [torch.randn(size, generator=generator).to(device) for size in SIZES]
    return [*floats, torch.tensor([rank, 7], device=device)]


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("fate", ["os._exit(0)", "sys.stdin.read()"])
def test_a_rank_that_is_gone_or_stuck_raises(device: str, fate: str) -> None:
    need_two_gpus(device)
    body = f"group.sum_([torch.ones(1, device={device!r})])\n{fate}\nos._exit(0)"
    with peer(collective.free_port(), device, body, 3.0) as group:
        tensor = torch.ones(1, device=device)
        group.sum_([tensor])
        assert tensor.item() == 2.0
        with pytest.raises(RuntimeError):
            group.sum_([tensor])


@pytest.mark.slow
def test_a_rank_that_never_comes_raises() -> None:
    with pytest.raises(RuntimeError):
        collective.Collective(0, 2, HOST, collective.free_port(), "cpu", 0.5)
    with pytest.raises(RuntimeError):
        collective.Collective(1, 2, HOST, collective.free_port(), "cpu", 0.5)


@pytest.mark.slow
def test_nobody_listens_beyond_this_host() -> None:
    """The store listened on all addresses once, whatever host it was given."""
    body = "group.sum_([torch.ones(1)])\nsys.stdin.read()"
    with peer(collective.free_port(), "cpu", body, 60.0) as group:
        group.sum_([torch.ones(1)])
        found = listening()
        assert found, "a rank listens"
        assert {address for address, _ in found} == {"0100007F"}, "127.0.0.1"


def listening() -> set[tuple[str, str]]:
    """Return address and port, as the kernel writes them, of TCP sockets on which this process listens."""
    own = set()
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            own.add(str(handle.readlink()))
    rows = [line.split() for family in ("tcp", "tcp6")
            for line in Path(f"/proc/net/{family}").read_text(encoding="ascii").splitlines()[1:]]  # fmt: skip
    listen = "0A"
    places = [row[1].split(":") for row in rows if row[3] == listen and f"socket:[{row[9]}]" in own]
    return {(address, port) for address, port in places}


def test_one_worker_sends_nothing() -> None:
    group = collective.Collective(0, 1, "", 0, "cpu")
    tensor = torch.arange(3.0)
    group.sum_([tensor])
    assert tensor.tolist() == [0.0, 1.0, 2.0]
    group.close()
