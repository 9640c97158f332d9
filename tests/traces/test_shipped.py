import re

import pytest

from tlt.traces.lengths.histogram import LengthHistogram
from tlt.traces.lengths.schema import Trace
from tlt.traces.lengths.shipped import DATA, SHIPPED, load, load_histogram, load_prompt_histogram, load_trace
from tltsched.errors import InputError

# Published with the data: responses, p50, p75, p90, p99, max.
PUBLISHED = {
    "r1-client35": (395_626, 1_586, 3_355, 5_811, 12_446, 32_768),
    "r1-client66": (41_230, 7_099, 11_829, 16_453, 22_951, 32_768),
    "r1-all": (1_385_405, 792, 1_498, 3_429, 12_604, 32_768),
    "mooncake-conversation": (12_031, 350, 472, 597, 1_119, 2_000),
    "azure-conversation": (19_366, 129, 395, 424, 601, 1_000),
}
ROW_TRACES = ["mooncake-conversation", "azure-conversation"]


def test_every_shipped_name_has_published_figures() -> None:
    assert list(SHIPPED) == list(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_percentiles_are_reproduced(name: str) -> None:
    hist = load_histogram(name)
    figures = (hist.rows, *(round(hist.percentile(p)) for p in (50, 75, 90, 99)), hist.max)
    assert figures == PUBLISHED[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_notice_states_the_same_figures(name: str) -> None:
    row = re.search(rf"^\| {name} \| (.*) \|$", (DATA / "NOTICE.md").read_text(), re.MULTILINE)
    assert row is not None
    assert tuple(int(cell.replace(",", "")) for cell in row[1].split(" | ")) == PUBLISHED[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_all_are_labelled_as_serving_with_licence_and_cap(name: str) -> None:
    origin = load_histogram(name).origin
    assert origin.kind == "serving"
    assert origin.licence == ("CC-BY-4.0" if name.startswith("azure") else "Apache-2.0")
    assert origin.max_response_tokens == PUBLISHED[name][-1]
    assert "not RL rollouts" in origin.text()


def test_the_notice_names_every_file() -> None:
    notice = (DATA / "NOTICE.md").read_text()
    assert [file.name for file in DATA.glob("*.gz") if file.name not in notice] == []
    assert sorted(file.name for file in DATA.glob("*.gz")) == sorted(s.file for s in SHIPPED.values())


@pytest.mark.parametrize("name", PUBLISHED)
def test_rows_where_the_source_has_rows(name: str) -> None:
    loaded = load(name)
    assert isinstance(loaded, Trace if name in ROW_TRACES else LengthHistogram)


def test_arrivals_are_in_seconds_and_prompt_lengths_known() -> None:
    rows = load_trace("mooncake-conversation").rows
    assert rows["arrived_s"].max() == pytest.approx(3536.999)
    assert load_prompt_histogram("mooncake-conversation").max == 126_195
    assert load_prompt_histogram("azure-conversation").rows == 19_366


def test_histograms_cannot_be_had_as_rows() -> None:
    with pytest.raises(InputError, match=r"r1-all.*mooncake-conversation, azure-conversation or a file"):
        load_trace("r1-all")


@pytest.mark.parametrize("read", [load, load_histogram, load_trace])
def test_an_unknown_name_tells_the_allowed_and_the_nearest(read: object) -> None:
    assert callable(read)
    with pytest.raises(InputError) as caught:
        read("r1-clinet35")
    assert "did you mean 'r1-client35'?" in str(caught.value)
    assert all(name in str(caught.value) for name in SHIPPED)
