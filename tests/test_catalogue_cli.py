"""What `tlt sim models` and `tlt sim gpus` print."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from tlt.commands.main import cli
from tlt.traces.catalogue.gpus import sheets
from tlt.traces.catalogue.models import model_config, published


def said(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["sim", *arguments])


def test_all_models_and_gpus_are_listed_with_their_sources() -> None:
    models, gpus = said("models").output, said("gpus").output
    for name, model in published().items():
        assert f"\n{name}: " in f"\n{models}"
        assert model.source in models
    for name, sheet in sheets().items():
        assert f"\n{name}: " in f"\n{gpus}"
        assert sheet.source in gpus
    assert "config.json" in models
    assert "bf16_teraflops" in gpus


def test_one_is_shown_by_name_or_by_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(model_config("gpt-oss-20b", "x")), encoding="utf-8")
    for name in ("openai/gpt-oss-20b", str(tmp_path)):
        shown = said("models", name)
        assert "20.91 billion parameters, 3.61 of them a token (4 of 32 experts)" in shown.output
    assert "H100" in said("gpus", "H100-SXM").output
    assert said("models", "Qwen9").exit_code != 0
