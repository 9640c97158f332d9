import io
import struct
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from tlt.analysis.kstar.pictures import draft_config_words, draw_kstar, edges, even_sentence
from tlt.analysis.kstar.report import first_to_pay, present_kstar
from tlt.analysis.report import present
from tlt.traces.results.kstar import CONFIGURED, KStar, KStarMap, write_kstar
from tltsched.errors import InputError

BATCHES, CONTEXTS, RATES = (1, 8, 64), (512.0, 4096.0), (0.2, 0.5, 0.8)


def map_of(
    rates: tuple[float, ...] = RATES, draft_configs: tuple[str, str] = ("2", "4"), pays: bool = True
) -> KStarMap:
    """Return a map whose second draft configuration is best at batch 1, and off at 64 unless that pays."""
    best = [
        {
            "rate": rate, "batch": batch, "context_tokens": context,
            "draft_config": "off" if batch == 64 and not pays else draft_configs[int(batch < 8)],
            "gain": 1.0 if batch == 64 and not pays else 2.5 - batch / 64, "gain_low": 0.9, "gain_high": 2.6,
            "runner_up": draft_configs[0], "runner_up_gain": 0.99,
            "regret": 0.0, "regret_high": 0.02 * (batch == 8), "ties": "", "near": "",
            "extrapolated": context > 1000, "length_with_bonus": 2.0,
        }
        for rate in (CONFIGURED, *rates) for batch in BATCHES for context in CONTEXTS
    ]  # fmt: skip
    breakeven = [
        {
            "batch": batch, "context_tokens": context, "draft_config": draft_config,
            "length_with_bonus": 1.2 + batch / 100,
            "most_with_bonus": 5.0, "rate": 0.1 + batch / 100 if rates else np.nan,
            "pays_first": bool(rates) and pays and draft_config == draft_configs[0],
            "extrapolated": context > 1000,
        }
        for batch in BATCHES for context in CONTEXTS for draft_config in draft_configs
    ]  # fmt: skip
    about = KStar(
        calibration="c", provenance="measured", engine="vLLM", engine_version="9", device="a GPU",
        date="2026-01-02", model="M", tp=1, acceptance="assumed: a test", cost_error=0.01,
        cost_error_source="a test", draws=10, seed=0, tool_version="0", draft_configs=("off", *draft_configs),
        batches=BATCHES,
        contexts=CONTEXTS, rates=rates, batch_range=(1, 64), context_range=(500.0, 1000.0),
    )  # fmt: skip
    return KStarMap(about, pd.DataFrame(best), pd.DataFrame(breakeven))


def said(folder: Path) -> str:
    text = io.StringIO()
    present(folder, Console(file=text, width=100))
    return text.getvalue()


def test_a_map_of_chains_has_two_pictures_and_one_of_trees_one() -> None:
    assert [picture.name for picture in draw_kstar(map_of())] == ["kstar", "kstar-configured"]
    trees = draw_kstar(map_of((), ("8_8_16", "8_8_32")))
    assert [picture.name for picture in trees] == ["kstar-configured"]


def test_pictures_are_the_same_bytes_each_time_and_as_wide_as_the_others() -> None:
    for first, again in zip(draw_kstar(map_of()), draw_kstar(map_of()), strict=True):
        assert first.png == again.png
        width, height = struct.unpack(">II", first.png[16:24])
        assert width == 1248
        assert 300 < height < 1400


def test_titles_say_the_answer() -> None:
    by_rate, configured = draw_kstar(map_of())
    assert (
        by_rate.title == "At batch 64 drafting pays from an acceptance rate of 0.74 (512 tokens of context)"
    )
    assert configured.title == (
        "Under the configured acceptance drafting pays everywhere, 1.50x to 2.48x; "
        "within the error of the step times that is sure nowhere"
    )
    assert "67%" in draw_kstar(map_of(pays=False))[1].title


def test_a_map_where_nothing_pays_is_drawn_and_said() -> None:
    found = map_of(pays=False)
    found = KStarMap(found.about, found.best.assign(draft_config="off", gain=1.0), found.breakeven)
    assert even_sentence(found) == "Drafting pays at no acceptance."
    assert draw_kstar(found)[1].title == "Under the configured acceptance no draft configuration gains"


def test_one_cell_is_a_map_too() -> None:
    found = map_of((0.5,))
    about = KStar(**{**{name: getattr(found.about, name) for name in KStar.__struct_fields__},
                     "batches": (8,), "contexts": (512.0,)})  # fmt: skip

    def kept(rows: pd.DataFrame) -> pd.DataFrame:
        return rows[(rows["batch"] == 8) & (rows["context_tokens"] == 512.0)]

    assert len(draw_kstar(KStarMap(about, kept(found.best), kept(found.breakeven)))) == 2


def test_edges_lie_between_the_positions() -> None:
    assert edges(np.array([0.0, 1.0, 3.0])).tolist() == [-0.5, 0.5, 2.0, 4.0]
    assert edges(np.array([0.2, 0.4]), 0.0, 1.0) == pytest.approx([0.0, 0.3, 1.0])
    assert edges(np.array([3.0])).tolist() == [2.5, 3.5]


def test_the_report_of_a_map_prints_tables_and_writes_pictures(tmp_path: Path) -> None:
    write_kstar(tmp_path, map_of())
    text = said(tmp_path)
    for words in (
        "2 2.38x?", "4 2.48x*", "0.74/1.84", "measured: vLLM 9, a GPU, 2026-01-02", "assumed: a test",
        "bonus token counted",
    ):  # fmt: skip
        assert words in text, words
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == [
        "kstar-configured.png", "kstar.png",
    ]  # fmt: skip


def test_where_no_rate_pays_the_table_has_a_dash(tmp_path: Path) -> None:
    found = map_of()
    never = found.breakeven["batch"] == 64
    breakeven = found.breakeven.assign(pays_first=found.breakeven["pays_first"] & ~never)
    write_kstar(tmp_path, KStarMap(found.about, found.best, breakeven))
    lines = said(tmp_path).splitlines()
    assert any(line.split() == ["64", "-", "-"] for line in lines)


def test_trees_are_told_by_length(tmp_path: Path) -> None:
    found = map_of((), ("8_8_16", "8_8_32"))
    assert len(first_to_pay(found)) == len(BATCHES) * len(CONTEXTS)
    write_kstar(tmp_path, found)
    assert "any of the trees" in said(tmp_path)


def test_a_broken_map_is_refused(tmp_path: Path) -> None:
    write_kstar(tmp_path, map_of())
    (tmp_path / "breakeven.parquet").unlink()
    with pytest.raises(InputError, match=r"breakeven\.parquet"):
        present_kstar(tmp_path, Console(file=io.StringIO()))


def test_draft_configs_are_named_as_readers_know_them() -> None:
    assert [draft_config_words(draft_config) for draft_config in ("4", "8_8_16", "off")] == [
        "K=4",
        "8_8_16",
        "off",
    ]
