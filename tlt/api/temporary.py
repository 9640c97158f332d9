"""A folder that lives as long as somebody holds it."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path


class TemporaryFolder:
    """A new folder, removed with all that is in it when the last holder lets go, or when Python ends.

    (tempfile.TemporaryDirectory warns when it is let go of; here that is the way it is meant to end.)
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="tlt-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
