"""Processes that are started afresh, and what becomes of their semaphores when somebody is killed."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext

SILENT = "ignore::UserWarning:multiprocessing.resource_tracker"


def spawning() -> SpawnContext:
    """Return the context of processes that begin anew: a fork would inherit threads in mid-work.

    One process of multiprocessing's own removes the semaphores of those that were killed. It is started here
    so that it does that without a warning: whoever reads it has nothing to do about it.
    """
    if sys.platform != "win32":
        told = os.environ.get("PYTHONWARNINGS")
        with environment({"PYTHONWARNINGS": f"{told},{SILENT}" if told else SILENT}):
            resource_tracker.ensure_running()
    return multiprocessing.get_context("spawn")


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the processes that are started inside; those of this process come back."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
