"""engine.json: what ran a measurement."""

from __future__ import annotations

import datetime

import msgspec

from tlt.realrun.config import RealConfig
from tlt.realrun.workers.messages import EngineInfo

ENGINE = "engine.json"


class EngineRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ran the steps; `warm_up_s` is the longest of all workers."""

    engine: str
    engine_version: str
    device: str
    torch: str
    date: str
    environment: dict[str, str]
    kv_tokens: int = 0  # that the smallest of its KV caches holds; 0: it does not tell
    block_tokens: int = 0  # of a block of these caches; 0: it does not tell
    warm_up_s: float
    config: RealConfig

    def describe(self) -> str:
        """Return one line: what was measured, on what, when."""
        return f"measured: {self.engine} {self.engine_version}, {self.device}, {self.date}"


def engine_record(info: EngineInfo, warm_up_s: float, config: RealConfig) -> EngineRecord:
    """Return the record of an engine that was started today."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return EngineRecord(**msgspec.structs.asdict(info), date=today, warm_up_s=warm_up_s, config=config)
