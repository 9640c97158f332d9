"""Ranks of a tensor parallel engine: processes that the engine's own starts and that end with it."""

from __future__ import annotations

import os
import signal
import threading
import time
from multiprocessing import current_process

NAME = "VllmWorker"  # vLLM's, with the number of the rank behind it
LOOK_S = 1.0
PATIENCE_S = 10.0  # for a rank that was told to end


def end_with_parent() -> None:
    """End this process, if it is a rank, soon after the one that started it: asked first, then at once.

    vLLM's ranks look for that themselves once they have loaded. Until then, for minutes with a large model,
    they would hold their cores and GPUs for nobody.
    """
    if current_process().name.startswith(NAME):
        threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE_S)
    os._exit(1)
