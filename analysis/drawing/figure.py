"""How a picture is made: the style, the palette, the footer, the bytes of a file and the SVG of a page."""

from __future__ import annotations

import hashlib
import io
import re
import textwrap
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib.style
import msgspec
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import TextPath

from tlt.traces.common.writing import write_file
from tlt.traces.runs.runfolder import CAUSES

SVG = {"svg.fonttype": "none"}  # text stays text: readable, and in the fonts of the reader
# What a page's style sheet decides. Ink on a coloured bar is INK or white, and stays.
PAGE_COLOURS = {
    "#ffffff": "var(--page)",
    "#000000": "var(--text)",
    "#262626": "var(--text)",
    "#333333": "var(--text)",
    "#444444": "var(--text)",
    "#666666": "var(--dim)",
    "#888888": "var(--dim)",
    "#dddddd": "var(--line)",
    "#eeeeee": "var(--band)",
}
INK, PAPER = "#010101", "#fefefe"  # on a coloured bar
BAND = "#eeeeee"  # behind lines: what an interval or a span covers
EDGE = "#888888"  # of a swatch whose colour may be that of the page, nearly
STYLE = Path(__file__).with_name("style.mplstyle")
WIDTH_IN = 9.6
# Of a legend, in sizes of its font: a handle with the space behind it, between columns, around all.
HANDLE_EM, COLUMN_GAP_EM, LEGEND_EDGE_EM = 2.8, 1.6, 3.0
_FOOTER_LINE_IN = 0.12
_FOOTER_COLUMNS = 180  # characters of the footer's size that fit WIDTH_IN

# Blues roll out, grey and red wait, greens train the drafter, purple and orange are the other phases. In a
# family the lightness differs, so that readers who do not tell hues apart can still follow the legend.
CAUSE_COLOURS: dict[str, str] = {
    "prefill": "#bcd9ee",
    "decode": "#6aaed6",
    "decode_off": "#3a6fc4",
    "speculate": "#08306b",
    "switch": "#00a5b5",
    "recompute": "#7fe5f0",
    "tail_idle": "#c9c9c9",
    "tool_wait": "#e7969c",
    "preempt_wait": "#d62728",
    "admission_wait": "#969696",
    "batch_wait": "#f4a5a5",
    "sync_pause": "#843c39",
    "lend": "#bd9e39",
    "drafter_activation": "#c7e9c0",
    "drafter_training": "#31a354",
    "drafter_stop": "#a1d07a",
    "drafter_publish": "#00441b",
    "reward": "#fdae6b",
    "logprob": "#9e7cc1",
    "policy_update": "#54278f",
    "weight_sync": "#e6550d",
    "other": "#8c6d31",
}

# Okabe and Ito's colours without the yellow, which is too light for a line on white.
POLICY_COLOURS = ("#000000", "#E69F00", "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
POLICY_DASHES = ("-", "--", ":", "-.")


class Image:
    """A figure that is drawn: for a file as PNG, for a page as SVG, each made when it is asked for.

    The bytes depend on the data and the matplotlib version alone: no date is written.
    """

    def __init__(self, figure: Figure, title: str) -> None:
        self._figure, self._title = figure, title

    @cached_property
    def png(self) -> bytes:
        """The picture on white."""
        with matplotlib.style.context(STYLE):
            buffer = io.BytesIO()
            self._figure.savefig(buffer, format="png", metadata={"Software": None})
        return buffer.getvalue()

    @cached_property
    def svg(self) -> str:
        """The picture in the colours of the page that it stands in, which may be light or dark."""
        with matplotlib.style.context([STYLE, SVG]):
            buffer = io.StringIO()
            self._figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Type")))
        text = buffer.getvalue()
        text = re.sub(r"<(metadata|style)\b.*?</\1>", "", text[text.index("<svg") :], flags=re.DOTALL)
        text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)  # HTML knows them
        text = re.sub(r'<g id="[^"]*">', "<g>", text).replace("xlink:href", "href")
        mark = hashlib.sha256(self._title.encode()).hexdigest()[:8]  # no two pictures of a page share an id
        ids = {found: f"s{mark}-{at}" for at, found in enumerate(re.findall(r' id="([^"]*)"', text))}
        text = re.sub(r'( id="|"#|\(#)([^")]+)', lambda found: found[1] + ids.get(found[2], found[2]), text)
        return re.sub(r"#[0-9a-f]{6}\b", lambda found: PAGE_COLOURS.get(found[0], found[0]), text)


class Picture(msgspec.Struct, frozen=True):
    """A drawn picture. `title` says what is seen, `caption` how to read it."""

    name: str
    title: str
    caption: str
    image: Image

    @property
    def png(self) -> bytes:
        """The picture as PNG."""
        return self.image.png


def plain(text: str) -> str:
    """Return text that the font can show: anything outside Latin-1 becomes a question mark."""
    return text.encode("latin-1", "replace").decode("latin-1")


def policy_label(policy: str) -> str:
    """Return the name of a policy as pictures show it: at most 40 characters."""
    return plain(policy if len(policy) <= 40 else f"{policy[:37]}...")


def policy_style(index: int) -> dict[str, Any]:
    """Return the line colour and dashes of the policy at `index` of the comparison."""
    return {
        "color": POLICY_COLOURS[index % len(POLICY_COLOURS)],
        "linestyle": POLICY_DASHES[index // len(POLICY_COLOURS) % len(POLICY_DASHES)],
    }


def legend_below(
    figure: SubFigure, handles: Sequence[Artist], labels: Sequence[str] = (), most: int = 9
) -> None:
    """Put a legend below the axes of a figure, in as many columns as fit it, `most` at most.

    `labels` are those of the handles where these have none of their own.
    """
    words = [*labels] or [str(handle.get_label()) for handle in handles]
    if not words:
        return
    size = matplotlib.rcParams["legend.fontsize"]
    widths = [TextPath((0, 0), word, size=size).get_extents().width / size for word in words]  # em
    columns = min(most, len(words))
    while columns > 1 and _legend_em(widths, columns) > 72 * WIDTH_IN / size:
        columns -= 1
    figure.legend([*handles], words, loc="outside lower left", ncols=columns, columnspacing=COLUMN_GAP_EM)


def _legend_em(widths: Sequence[float], columns: int) -> float:
    """Return the width of a legend of labels of these widths, which fill one column after the other."""
    rows, longer = divmod(len(widths), columns)
    lengths = [rows + 1] * longer + [rows] * (columns - longer)
    starts = [sum(lengths[:column]) for column in range(columns)]
    widest = [max(widths[start : start + length]) for start, length in zip(starts, lengths, strict=True)]
    return sum(widest) + HANDLE_EM * columns + COLUMN_GAP_EM * (columns - 1) + LEGEND_EDGE_EM


def cause_legend(figure: SubFigure, causes: Sequence[str]) -> None:
    """Put a legend of causes, in the order of CAUSES, below the axes of a figure."""
    patches = [
        Patch(facecolor=CAUSE_COLOURS[cause], edgecolor=EDGE, linewidth=0.5, label=CAUSES[cause][1])
        for cause in CAUSES
        if cause in causes
    ]
    legend_below(figure, patches, most=3)


def policy_legend(figure: SubFigure, policies: Sequence[str]) -> None:
    """Put a legend of the policies' lines below a figure; one policy alone needs none."""
    if len(policies) < 2:
        return
    handles = [Line2D([], [], **policy_style(index)) for index in range(len(policies))]
    legend_below(figure, handles, [policy_label(policy) for policy in policies], most=5)


def draw(build: Callable[[SubFigure], str], height_in: float, basis: Sequence[str]) -> tuple[str, Image]:
    """Draw a figure in the project's style; `build` fills it and returns its title. Returns title and image.

    Below it a footer gives `basis`: the facts that the figures rest on.
    """
    footer = textwrap.fill(plain("  ·  ".join(basis)), _FOOTER_COLUMNS)
    with matplotlib.style.context(STYLE):
        footer_in = 0.1 + _FOOTER_LINE_IN * (1 + footer.count("\n"))
        figure = Figure(figsize=(WIDTH_IN, height_in + footer_in), layout="constrained")
        FigureCanvasAgg(figure)
        # Two parts, since a legend outside the axes clings to the edge of its part.
        parts = figure.subfigures(2, 1, squeeze=False, height_ratios=(height_in, footer_in))
        above, below = parts[:, 0]
        title = plain(build(above))
        above.suptitle(textwrap.fill(title, 100), x=0.01, ha="left", fontsize=11, fontweight="bold")
        below.text(0.01, 0.5, footer, va="center", fontsize=6.8, color="#666666")
    return title, Image(figure, title)


def save(pictures: list[Picture], folder: Path) -> list[Path]:
    """Write the pictures as PNG files into `folder`, which is made if it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{picture.name}.png" for picture in pictures]
    for path, picture in zip(paths, pictures, strict=True):
        write_file(path, picture.png)
    return paths
