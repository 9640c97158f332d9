"""One writer a folder of results: the second one is told, instead of mixing its files with the first one's.

The lock is on the folder itself, so nothing is left behind, and the system gives it back when a process dies.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tltsched.errors import InputError

if sys.platform != "win32":
    import fcntl


_held: set[Path] = set()  # by this process


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Hold a folder, which is made if it does not exist, and taken away if nothing was written into it.

    Whoever holds it already, in this process, goes on. Raises InputError if another process holds it. File
    systems without locks are not guarded.
    """
    if folder.resolve() in _held:
        yield
        return
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    handle, real = _lock(folder), folder.resolve()
    _held.add(real)
    try:
        yield
    finally:
        _held.discard(real)
        if handle is not None:
            os.close(handle)
        with suppress(OSError):  # not empty
            for each in missing:
                each.rmdir()


def _lock(folder: Path) -> int | None:
    if sys.platform == "win32":
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        allowed = "a folder that no other command writes to now"
        raise InputError("--out", str(folder), allowed, "wait for it, or choose another") from None
    except OSError:
        os.close(handle)
        return None
    return handle
