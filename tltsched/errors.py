"""Errors that name the field, what was given, what is allowed, and what to do."""

from __future__ import annotations


class InputError(ValueError):
    """A value from a user that cannot be used. Its text is the whole message: no traceback is needed."""

    def __init__(self, field: str, got: object, allowed: str, fix: str) -> None:
        self.field, self.got, self.allowed, self.fix = field, got, allowed, fix
        super().__init__(f"got {got!r} for {field}; allowed: {allowed}; {fix}")


class ProtocolError(RuntimeError):
    """A driver broke the order of events (for example, an epoch ended on a worker that has no requests)."""
