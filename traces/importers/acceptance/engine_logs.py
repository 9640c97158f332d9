"""Lines of vLLM's and SGLang's servers about speculative decoding.

vLLM (v1/spec_decode/metrics.py) logs the counts of each interval: `SpecDecoding metrics: Mean acceptance
length: ...`, the bonus token included, and the share by position. SGLang (scheduler metrics) logs in each
`Decode batch` line `accept len`, bonus included, and in later versions `accept rate`, which is one of

    accept len / (drafts + 1)          with the bonus token, until late 2025
    (accept len - 1) / drafts          without it, since

so that lines of one run that agree on one number of drafts state it. Both print their settings first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tlt.traces.importers.acceptance.counted import CHAINS, MOST_DEPTH, Counted
from tlt.traces.importers.reading.lines import Line
from tlt.traces.importers.reading.values import number_in
from tltsched.errors import InputError

VLLM, SGLANG = b"SpecDecoding metrics:", b"accept len:"
VLLM_0 = b"Speculative metrics:"
_NUMBERS = {
    name: re.compile(pattern.replace("NUMBER", r"([-+0-9.eE]+|nan)"))
    for name, pattern in {
        "accepted": r"Accepted: NUMBER tokens",
        "drafted": r"Drafted: NUMBER tokens",
        "length": r"Mean acceptance length: NUMBER",
        "all_accepted": r"Number of accepted tokens: NUMBER",
        "all_drafted": r"Number of draft tokens: NUMBER",
        "depth_0": r"Number of speculative tokens: NUMBER",
        "accept_length": r"accept len: NUMBER",
        "accept_rate": r"accept rate: NUMBER",
        "running": r"#running-req: NUMBER",
    }.items()
}
_BY_POSITION = re.compile(r"Per-position acceptance rate: ([0-9.]+(?:, [0-9.]+)*)")
_VLLM_DEPTH = re.compile(r"num_spec(?:ulative)?_tokens['\"]?\s*[=:]\s*(\d{1,3})")
_SGLANG_STEPS = re.compile(r"speculative_num_steps['\"]?\s*[=:]\s*(\d{1,3})")
_SGLANG_TOPK = re.compile(r"speculative_eagle_topk['\"]?\s*[=:]\s*(\d{1,3})")


class ServerLog:
    """Takes lines; `vllm` and `sglang` are what they counted."""

    def __init__(self, depth: int | None = None) -> None:
        self.vllm: list[Counted] = []
        self.sglang: list[Counted] = []
        self.depth = depth  # as the user says it, then as the settings state it
        self.shallow = (0.0, 0.0)  # accepted and drafted of lines that say nothing of a verification
        self.topk = 1
        self.last_of_0: Counted | None = None  # vLLM 0 counts since its beginning
        self.rates: list[tuple[float, float]] = []

    def take(self, line: Line) -> None:
        """Read one line."""
        text = line.text
        if b"spec" in text and (b"_tokens" in text or b"_num_steps" in text):
            self._settings(text.decode("utf-8", "replace"))
        if VLLM in text:
            self._of_vllm(text[text.index(VLLM) :].decode("utf-8", "replace"))
        elif VLLM_0 in text:
            self.last_of_0 = _of_vllm_0(text.decode("utf-8", "replace")) or self.last_of_0
        elif SGLANG in text:
            self._of_sglang(text.decode("utf-8", "replace"))

    def counted(self) -> Iterator[tuple[str, str, list[Counted]]]:
        """Yield (engine, what weights are, counts) of each engine that said something."""
        whole = self.vllm or ([self.last_of_0] if self.last_of_0 else [])
        accepted, drafted = self.shallow
        if not whole and drafted:
            raise InputError(
                "drafts of a verification in the server log", "not stated", "what num_speculative_tokens was",
                f"say it (--drafts K, acceptance.read_drafts = K): {accepted:,.0f} of {drafted:,.0f} drafted "
                "tokens were accepted",
            )  # fmt: skip
        if whole:
            yield "vLLM server log", "", whole
        if self.sglang:
            depth = self._sglang_depth()
            found = [
                Counted(verifications=one.verifications, accepted=one.accepted, depth=depth)
                for one in self.sglang
            ]
            yield "SGLang server log", "lines are weighted by the requests that ran", found

    def _settings(self, text: str) -> None:
        found = _VLLM_DEPTH.search(text) or _SGLANG_STEPS.search(text)
        if found and int(found[1]) > 0:
            self.depth = int(found[1])
        topk = _SGLANG_TOPK.search(text)
        if topk:
            self.topk = int(topk[1])

    def _of_vllm(self, text: str) -> None:
        values = _values(text, "accepted", "drafted", "length")
        accepted, drafted = values["accepted"], values["drafted"]
        if accepted is None or drafted is None or drafted <= 0 or accepted < 0:
            return
        found = _of_interval(text, accepted, drafted, self.depth)
        if found is not None:
            self.vllm.append(found)
        elif values["length"] is not None:
            self.vllm.append(Counted(verifications=drafted, accepted=max(values["length"] - 1, 0.0)))
        else:
            self.shallow = (self.shallow[0] + accepted, self.shallow[1] + drafted)

    def _of_sglang(self, text: str) -> None:
        values = _values(text, "accept_length", "accept_rate", "running")
        length = values["accept_length"]
        if length is None or not 1 <= length <= 100:
            return
        running = values["running"]
        self.sglang.append(
            Counted(verifications=1.0 if running is None else max(running, 0.0), accepted=length - 1)
        )
        if values["accept_rate"]:
            self.rates.append((length, values["accept_rate"]))

    def _sglang_depth(self) -> int | None:
        if self.topk > 1:
            raise InputError(
                "speculative_eagle_topk of the server", self.topk, "1",
                "a tree was drafted: what a chain would have got accepted cannot be known from its mean",
            )  # fmt: skip
        return self.depth or depth_of_rates(self.rates)


def depth_of_rates(rates: list[tuple[float, float]], digits: float = 0.005) -> int | None:
    """Return the number of drafts that (acceptance length with bonus, rate) pairs agree on, None if not one.

    digits: half of the last digit that is printed.
    """
    fits = {
        depth
        for depth in range(1, CHAINS + 1)
        for without, drafts in ((1, depth), (0, depth + 1))
        if rates and all(abs((length - without) / drafts - rate) <= digits * 2 for length, rate in rates)
    }
    return fits.pop() if len(fits) == 1 else None


def _of_interval(text: str, accepted: float, drafted: float, stated: int | None) -> Counted | None:
    """Return the counts of an interval, None if the depth of a verification is not known.

    The number of drafts is not printed: it is the drafted tokens over the positions if all were as deep, else
    what accepted tokens and shares by position give.
    """
    found = _BY_POSITION.search(text)
    read = [number_in(one) for one in found[1].split(", ")] if found else []
    shares = tuple(one for one in read if one is not None and 0 <= one <= 1)
    if len(shares) < len(read) or len(shares) > MOST_DEPTH:
        return None
    depth = len(shares) or stated
    if depth is None:
        return None
    verifications = drafted / depth
    if shares and sum(shares) > 0 and accepted:
        given = accepted / sum(shares)
        if abs(given - verifications) > 0.01 * given + 1:
            verifications = given
    mean = accepted / verifications
    return Counted(
        verifications=verifications,
        accepted=mean,
        depth=depth,
        by_position=shares,
        drafted=drafted / verifications,
    )


def _of_vllm_0(text: str) -> Counted | None:
    values = _values(text, "all_accepted", "all_drafted", "depth_0")
    accepted, drafted, depth = values["all_accepted"], values["all_drafted"], values["depth_0"]
    if accepted is None or not drafted or not depth or not 1 <= depth <= MOST_DEPTH:
        return None
    verifications = drafted / int(depth)
    return Counted(verifications=verifications, accepted=accepted / verifications, depth=int(depth))


def _values(text: str, *names: str) -> dict[str, float | None]:
    found = {name: _NUMBERS[name].search(text) for name in names}
    return {name: number_in(one[1]) if one else None for name, one in found.items()}
