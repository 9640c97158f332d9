"""What ends a command from outside, in one line: a disk, memory, names that cannot be written, a signal."""

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

GOES_ON = "what was finished is kept, and the same command goes on where it can"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
LONGEST = 300  # characters of what the system or a library says


class Terminated(BaseException):
    """The process was asked to end, as schedulers and CI ask (SIGTERM); whoever has children ends them."""


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Turn the first SIGTERM inside into Terminated; a second one ends the process at once."""

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, signal.SIG_DFL)
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def outside(error: Exception) -> str | None:
    """Return in one line what went wrong outside of the program; None if that is not what it was."""
    match error:
        case OSError() if error.errno in FULL:
            return f"no space is left{_where(error)}: make room; {GOES_ON}"
        case OSError():
            what = error.strerror or _first_line(error)
            return f"{what}{_where(error)}: check the path and who may write there; {GOES_ON}"
        case MemoryError() | RuntimeError() if isinstance(error, MemoryError) or _of_memory(str(error)):
            detail = f" ({_first_line(error)})" if str(error) else ""
            return f"not enough memory{detail}: ask for less, such as fewer steps, responses or GPUs"
        case UnicodeError():
            return f"a name or text is not UTF-8 ({_first_line(error)}): rename or convert it"
    return None


def _of_memory(text: str) -> bool:
    """Return whether torch says that a machine's or a GPU's memory does not suffice."""
    return "DefaultCPUAllocator: can't allocate memory" in text or "CUDA out of memory" in text


def _where(error: OSError) -> str:
    names = [repr(name)[:LONGEST] for name in (error.filename, error.filename2) if name is not None]
    return f" for {' and '.join(names)}" if names else ""


def _first_line(error: Exception) -> str:
    """Return the first line of what an error says; nothing in it can act on a terminal."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0][:LONGEST]
    return "".join(each if each.isprintable() else "?" for each in line)
