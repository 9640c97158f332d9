"""`tlt sim models` and `tlt sim gpus`: what has a name, and how to give what has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tlt.traces.catalogue.gpus import GpuSpec
    from tlt.traces.catalogue.shape import ModelShape


@click.command()
@click.argument("name", required=False)
def models(name: str | None) -> None:
    """List the models that ship, or show NAME (or the path of a config.json): size, cache, source."""
    from tlt.traces.catalogue.models import model_shape, published

    for each in [name] if name else published():
        shape = model_shape(each, "NAME")
        also = published()[each].also if each in published() else ()
        click.echo(f"{each}: {_model_words(shape)}")
        click.echo(f"    {shape.source}" + (f"; also {', '.join(also)}" if also else ""))
    if not name:
        click.echo(
            "\nhardware.model takes one of these, with its organisation (Qwen/Qwen3-8B) or with\n"
            "-FP8, -INT4 or -AWQ at its end as well, or the path of a config.json or of its folder."
        )


def _model_words(shape: ModelShape) -> str:
    """Return what follows from a shape, in words."""
    whole, active = shape.parameters() / 1e9, shape.active_parameters() / 1e9
    parts = [f"{whole:.2f} billion parameters"]
    if shape.experts:
        parts.append(
            f"{active:.2f} of them a token ({shape.experts.per_token} of {shape.experts.count} experts)"
        )
    parts.append(f"weights {shape.weight_bytes() / 1e9:.1f} GB")
    parts.append(f"cache {shape.kv_bytes_per_token() / 1e3:.1f} kB a token")
    if shape.kv_bytes_per_request():
        parts.append(f"and {shape.kv_bytes_per_request() / 1e6:.1f} MB a request at most")
    return ", ".join(parts)


@click.command()
@click.argument("name", required=False)
def gpus(name: str | None) -> None:
    """List the GPUs that ship, or show NAME (or the path of a file of figures), with the sheet of each."""
    from tlt.traces.catalogue.gpus import gpu_spec, sheets

    for each in [name] if name else sheets():
        spec = gpu_spec(each, "NAME")
        also = sheets()[each].also if each in sheets() else ()
        click.echo(f"{each}: {_gpu_words(spec)}")
        click.echo(f"    {spec.source}" + (f"; also {', '.join(also)}" if also else ""))
    if not name:
        click.echo(
            "\nhardware.gpu takes one of these, or the path of a TOML file with name, bf16_teraflops,\n"
            "memory_gb, memory_gb_per_s and source; fp8_teraflops, fp4_teraflops and link_gb_per_s\n"
            "where it has them."
        )


def _gpu_words(spec: GpuSpec) -> str:
    """Return the figures of a sheet, in words."""
    rates = {"bf16": spec.bf16_flops, "FP8": spec.fp8_flops, "FP4": spec.fp4_flops}
    known = ", ".join(f"{name} {rate / 1e12:,.0f} TFLOP/s" for name, rate in rates.items() if rate)
    memory = f"{spec.memory_bytes / 1e9:g} GB at {spec.memory_bytes_per_s / 1e9:,.0f} GB/s"
    link = f", links {2 * spec.link_bytes_per_s / 1e9:g} GB/s both ways" if spec.link_bytes_per_s else ""
    return f"{known}; {memory}{link}"
