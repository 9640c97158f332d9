"""Run `python -m tlt` from a source tree that was not installed."""

from __future__ import annotations

from tlt.commands.main import main

if __name__ == "__main__":
    main()
