"""`tlt sim policies` and `tlt sim schedules`: names, what they are, and every parameter with its default."""

from __future__ import annotations

import click

from tlt.commands.options import json_option
from tlt.commands.output import echo_json


@click.command()
@json_option
def policies(as_json: bool) -> None:
    """List the policies: preset names, what each does, and its parameters with their defaults.

    A parameter is set in brackets: goodput(hysteresis=0.01). Forms such as static:DRAFT take an argument.
    """
    from tltsched.policies import FORMS, PRESETS
    from tltsched.written.parameters import listing

    _show({name: listing(spec) for name, spec in PRESETS.items()}, as_json)
    if not as_json:
        click.echo("with an argument:")
        for form in FORMS.values():
            click.echo(f"    {form.shape}: {form.advice}")


@click.command()
@json_option
def schedules(as_json: bool) -> None:
    """List the rollout schedules: names, what each does, and its parameters with their defaults.

    POLICY@SCHEDULE runs a policy under one; a parameter is set in brackets:
    none@bounded_async(trainer_share=0.5).
    """
    from tltsched.schedules import PRESETS
    from tltsched.written.parameters import listing

    _show({name: listing(spec) for name, spec in PRESETS.items()}, as_json)


def _show(found: dict[str, dict[str, object]], as_json: bool) -> None:
    if as_json:
        echo_json(found)
        return
    for name, each in found.items():
        click.echo(f"{name}\n    {each['what']}")
        parameters = each["parameters"]
        assert isinstance(parameters, dict)
        for key, value in parameters.items():
            click.echo(f"    {key} = {value}")
