"""What a serving benchmark says of drafting: `spec_decode_*` of vLLM's, `accept_length` of SGLang's."""

from __future__ import annotations

from typing import Any

import msgspec

from tlt.traces.importers.acceptance.counted import Counted, depth_of
from tlt.traces.importers.reading.values import number, whole


class Drafting(msgspec.Struct):
    """The fields of a result that say something of drafts."""

    spec_decode_num_drafts: Any = None
    spec_decode_draft_tokens: Any = None
    spec_decode_accepted_tokens: Any = None
    spec_decode_acceptance_length: Any = None
    spec_decode_per_position_acceptance_rates: Any = None
    accept_length: Any = None
    completed: Any = None

    def vllm(self) -> Counted | None:
        """Return the counts of vLLM's benchmark; acceptance length is stated with the bonus token."""
        drafts, drafted = number(self.spec_decode_num_drafts), number(self.spec_decode_draft_tokens)
        length, accepted = (
            number(self.spec_decode_acceptance_length),
            number(self.spec_decode_accepted_tokens),
        )
        if drafts is None or drafts <= 0:
            return None
        mean = accepted / drafts if accepted is not None else None if length is None else length - 1
        if mean is None or mean < 0:
            return None
        rates = self.spec_decode_per_position_acceptance_rates
        shares = [number(rate) for rate in rates] if isinstance(rates, list) and len(rates) <= 1000 else []
        known = tuple(share for share in shares if share is not None)
        known = known if len(known) == len(shares) else ()
        depth = len(known) or depth_of(drafted, drafts)
        each = drafted / drafts if drafted else None
        return Counted(verifications=drafts, accepted=mean, depth=depth, by_position=known, drafted=each)

    def sglang(self) -> Counted | None:
        """Return what SGLang's benchmark says: tokens a verification, bonus included, of so many requests."""
        length = number(self.accept_length)
        if length is None or length < 1:
            return None
        return Counted(verifications=float(whole(self.completed) or 1), accepted=length - 1)
