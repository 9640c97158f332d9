"""What `make` installs is pinned with hashes, and is all that the project asks for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
LOCKED = PROJECT / "locked"
PIN = re.compile(r"^(?P<name>[a-z0-9.-]+)==(?P<version>[^ ]+)(?P<marker> ; [^\\]+)? \\$")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}(?: \\)?$")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path: Path) -> dict[str, str]:
    """Return the versions of a lock by name, each of which has a hash or more."""
    found: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            assert HASH.match(line), line
            assert found
            continue
        pin = PIN.match(line)
        assert pin, f"{path.name}: {line}"
        found[canonical(pin["name"])] = pin["version"]
    text = path.read_text(encoding="utf-8")
    assert len(re.findall(r"==[^\n]*\\\n    --hash=sha256:", text)) == len(found)
    return found


@pytest.mark.parametrize("name", ["run", "dev", "tools", "engine-cpu"])
def test_every_package_is_pinned_with_hashes(name: str) -> None:
    assert pins(LOCKED / f"{name}.txt")


def test_what_the_project_asks_for_is_locked() -> None:
    asked = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = asked["optional-dependencies"]
    for name, needed in (
        ("run", asked["dependencies"]),
        ("dev", [*asked["dependencies"], *extras["dev"]]),
        ("tools", [*extras["mutants"], *extras["audit"]]),
    ):
        wanted = {canonical(re.split(r"[>=<\[ ;]", each)[0]) for each in needed}
        assert wanted <= pins(LOCKED / f"{name}.txt").keys()
    assert "setuptools" in pins(LOCKED / "run.txt")  # builds the project itself


def test_locks_agree() -> None:
    run, dev, tools = (pins(LOCKED / f"{name}.txt") for name in ("run", "dev", "tools"))
    assert run.items() <= dev.items()
    assert all(dev[name] == tools[name] for name in dev.keys() & tools.keys())
    rows = (PROJECT / "realrun" / "requirements-cpu.txt").read_text(encoding="utf-8").splitlines()
    asked = dict(row.split(" ")[0].split("==") for row in rows if row and not row.startswith("#"))
    engine = {canonical(name): version for name, version in asked.items() if name != "torch"}
    assert engine == pins(LOCKED / "engine-cpu.txt")
