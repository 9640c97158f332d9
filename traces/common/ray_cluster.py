"""The Ray cluster that a command runs on: the one of RAY_ADDRESS or `ray start`, else one of this machine."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from tltsched.errors import InputError

REACH_S = 5.0  # for the head of a cluster to be reached
CURRENT_CLUSTER = Path("/tmp/ray/ray_current_cluster")  # noqa: S108 -- where `ray start` leaves its address


def connected() -> Any:
    """Return the module ray, connected to a cluster; raises InputError without Ray or without an answer."""
    try:
        import ray
    except ImportError:
        raise InputError(
            "--executor", "ray", "this machine, or ray where it is installed", "pip install 'tlt-sim[ray]'"
        ) from None
    if ray.is_initialized():
        return ray
    address = os.environ.get("RAY_ADDRESS", "")
    if address and not address.startswith("ray://") and not _reached(address):
        raise InputError(
            "RAY_ADDRESS", address, "the address of a cluster that runs", "start it, or unset it"
        )
    if not address and CURRENT_CLUSTER.is_file() and _reached(CURRENT_CLUSTER.read_text().strip()):
        address = "auto"
    ray.init(address=address or "local", log_to_driver=False, include_dashboard=None if address else False)
    return ray


def _reached(address: str) -> bool:
    """Return whether something listens at `host:port`; one that is gone makes Ray wait for minutes."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=REACH_S):
            return True
    except (OSError, ValueError):
        return False
