"""`tlt real warm-up`, which is an example of the sources now: an error that says where it is."""

from __future__ import annotations

import click

from tltsched.errors import InputError

NEW = "python -m examples.rl_smollm2.warm_up"


@click.command(
    "warm-up", hidden=True, add_help_option=False, context_settings={"ignore_unknown_options": True}
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def warm_up(arguments: tuple[str, ...]) -> None:
    """Say where the warm-up is."""
    del arguments
    fix = "run that with the same arguments, from the folder with the project's sources"
    raise InputError("tlt real", "warm-up", NEW, fix)
