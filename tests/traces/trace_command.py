"""`tlt trace` called as a user calls it: what it answers, and how it refuses."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from tlt.commands.trace.group import trace
from tltsched.errors import InputError


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(trace, [str(argument) for argument in arguments])


def answer(*arguments: str | Path) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.output


def refusal(*arguments: str | Path) -> str:
    error = run(*arguments).exception
    assert isinstance(error, InputError), error
    return str(error)
