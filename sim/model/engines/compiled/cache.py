"""Where compiled code is kept between processes: beside the source, or in the user's cache.

A folder is named after the source of all engines: numba looks at the file of a function alone, not at those
of the functions and constants that it uses.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import config

HERE = Path(__file__).resolve().parent


def _folder() -> Path:
    """Return a folder that can be written; raises OSError if there is none."""
    digest = hashlib.sha256(
        b"".join(path.read_bytes() for path in sorted(HERE.parent.rglob("*.py")))
    ).hexdigest()
    own = HERE / "__pycache__" / digest[:16]
    if own.is_dir() or os.access(own.parent if own.parent.is_dir() else HERE, os.W_OK):
        own.mkdir(parents=True, exist_ok=True)
        return own
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tlt" / digest[:16]
    home.mkdir(parents=True, exist_ok=True)
    return home


FOLDER = str(_folder())


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function, or load what an earlier process compiled."""
    before, config.CACHE_DIR = config.CACHE_DIR, FOLDER
    try:
        return njit(cache=True)(function)
    finally:
        config.CACHE_DIR = before
