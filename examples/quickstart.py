"""From response lengths to a decision in Python: `python examples/quickstart.py [FOLDER]`.

Lengths of your own run come first, then two policies beside no speculation on the cluster of a shipped
preset, then what to draft at which batch size. The same figures come from `tlt sim recommend`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tlt

PRESET = Path(__file__).parents[1] / "sim" / "presets" / "measured-7b.toml"


def main(out: Path) -> None:
    """Print the lengths, the comparison and the advice; write the report into `out`."""
    lengths = tlt.load("r1-client35")  # or "lengths.csv", a framework's log, a list of numbers, a data frame
    print(f"{len(lengths):,} responses, longest over median {lengths.describe().max_over_median:.1f}")

    answer = tlt.recommend(
        lengths,
        ["none", "static:4", "goodput"],
        config=PRESET,
        settings={"hardware.gpus": 8, "workload.steps": 6, "workload.prompts_per_step": 16},
        out=out,
    )
    print(answer.answer)
    print(answer.to_pandas()[["step_s", "speedup", "speedup_low", "speedup_high", "idle_share"]].round(3))
    print(answer.advice_to_pandas()[["requests", "draft_config", "gain", "gain_low", "gain_high"]].round(2))
    print(f"report: {answer.report()}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/quickstart"))
