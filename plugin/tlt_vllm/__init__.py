"""The scheduler inside engines that others run: a vLLM plugin that watches, advises or chooses K.

It is a distribution of its own (tlt-vllm, imported as tlt_vllm) and a room of this project (tlt.plugin), so
its modules import one another by relative names. Nothing of vLLM is imported before vLLM loads it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

SETTINGS = "TLT_PLUGIN"
"""The environment variable that names the settings; without it the plugin does nothing."""

SAID = "TLT_PLUGIN_SAID"
"""What was said already, for the processes that this one starts."""

if importlib.util.find_spec("tltsched") is None:  # the distribution alone: it carries the scheduler with it
    sys.path.append(str(Path(__file__).parent / "carried"))


def register() -> None:
    """Do what the settings say; vLLM calls this in each of its processes, more than once in some.

    Never raises: whatever goes wrong is said in one line and the engine runs on as it would without.
    """
    path = os.environ.get(SETTINGS)
    if not path:
        return
    try:
        from .install import install

        install(Path(path))
    except Exception as error:
        text = f"not used, the engine decides for itself: {type(error).__name__}: {error}"
        if os.environ.get(SAID) != text:  # the processes of an engine, started one by the other, say it once
            os.environ[SAID] = text
            sys.stderr.write(f"tlt: {' '.join(text.split())}\n")
