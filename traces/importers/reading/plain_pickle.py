"""Plain values out of a pickle that is never executed.

`pickletools.genops` names the instructions of a pickle without carrying them out. This machine carries out
only those that build dicts, lists, tuples, texts and numbers. What would import or call something becomes
OPAQUE, which can be stored and nothing else. Memory is bounded: of the numbers of a list only their count and
range are kept, of a long text only that it was there.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from itertools import groupby
from typing import IO, Any, cast

MAX_BYTES = 4 << 30  # of instructions; a rollout of 16k responses is below 1 GiB
MAX_ARGUMENT_BYTES = 64 << 20
MAX_TEXT_LINE_BYTES = 1 << 16
MAX_STORED = 5_000_000  # entries of dicts and lists, of the memo and the stack
KEPT_CHARACTERS = 256
MOST_RUNS = 1 << 17  # of a mask
GENOPS_ERRORS = (ValueError, UnicodeError, OverflowError, IndexError, KeyError, EOFError, TypeError)


class NotPlainError(ValueError):
    """The pickle is broken, too large, or no pickle."""


class Opaque:
    """Stands for what was not carried out, or not kept."""

    __slots__ = ()


OPAQUE = Opaque()
_MARK = Opaque()


class Items:
    """A list or tuple: how many elements, those that are no numbers, range and sum of the whole numbers.

    runs: of a list of zeros and ones (a mask) how many equal ones follow one another; the first are those
    of the value `begins`. None: something else is in it, or there are too many.
    """

    __slots__ = ("begins", "count", "kept", "largest", "runs", "smallest", "total")

    def __init__(self) -> None:
        self.count = 0
        self.kept: list[Any] = []
        self.smallest: int | None = None
        self.largest: int | None = None
        self.total = 0
        self.runs: list[int] | None = []
        self.begins: int | None = None

    def add(self, values: list[Any]) -> int:
        """Append `values`; returns how many of them are kept."""
        self.count += len(values)
        numbers = [v for v in values if type(v) is int]
        if numbers:
            low, high = min(numbers), max(numbers)
            self.total += sum(numbers)
            self.smallest = low if self.smallest is None else min(self.smallest, low)
            self.largest = high if self.largest is None else max(self.largest, high)
        if self.runs is not None:
            mask = len(numbers) == len(values) and (not numbers or (low >= 0 and high <= 1))
            self._run(numbers) if mask else self._no_runs()
        if len(numbers) == len(values):
            return 0
        others = [v for v in values if type(v) not in (int, float, bool)]
        self.kept += others
        return len(others)

    def _run(self, numbers: list[int]) -> None:
        """Add a piece of a mask to the runs."""
        assert self.runs is not None
        for value, equal in groupby(numbers):
            length = sum(1 for _ in equal)
            if self.begins is None:
                self.begins = value
            last = self.begins ^ (len(self.runs) + 1 & 1)
            if self.runs and value == last:
                self.runs[-1] += length
            else:
                self.runs.append(length)
        if len(self.runs) > MOST_RUNS:
            self._no_runs()

    def _no_runs(self) -> None:
        self.runs = None


class _Bounded:
    """What genops reads from: counts, and refuses what is too large before it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.total = file, 0

    def read(self, size: int) -> bytes:
        if size > MAX_ARGUMENT_BYTES:
            raise NotPlainError(f"a value of {size} bytes")
        return self._counted(self.file.read(size))

    def readline(self) -> bytes:
        return self._counted(self.file.readline(MAX_TEXT_LINE_BYTES))

    def _counted(self, data: bytes) -> bytes:
        self.total += len(data)
        if self.total > MAX_BYTES:
            raise NotPlainError(f"more than {MAX_BYTES >> 30} GiB of instructions")
        return data


def load_plain(file: IO[bytes]) -> Any:
    """Return the value of the pickle in `file`: dicts, Items, texts, numbers, None, and OPAQUE.

    Raises NotPlainError.
    """
    machine = _Machine()
    try:
        for operation, argument, _ in pickletools.genops(cast("IO[bytes]", _Bounded(file))):
            machine.carry_out(operation.name, argument)
    except NotPlainError:
        raise
    except GENOPS_ERRORS as error:
        raise NotPlainError(str(error)[:200] or type(error).__name__) from None
    return machine.result()


# Instructions that push what they carry, by name.
NUMBERS = frozenset(("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"))
TEXTS = frozenset(
    ("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING")
)
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
# How many values an instruction takes, to leave OPAQUE in their place.
TAKEN = {
    "GLOBAL": 0, "PERSID": 0, "EXT1": 0, "EXT2": 0, "EXT4": 0, "BINBYTES": 0, "SHORT_BINBYTES": 0,
    "BINBYTES8": 0, "BYTEARRAY8": 0, "NEXT_BUFFER": 0, "EMPTY_SET": 0, "READONLY_BUFFER": 1, "BINPERSID": 1,
    "STACK_GLOBAL": 2, "REDUCE": 2, "NEWOBJ": 2, "BUILD": 2, "NEWOBJ_EX": 3,
}  # fmt: skip
TAKEN_TO_MARK = frozenset(("INST", "OBJ", "FROZENSET"))
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
IGNORED = frozenset(("PROTO", "FRAME", "STOP"))


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.stored = 0

    def result(self) -> Any:
        """Return what is left when all instructions are done."""
        if len(self.stack) != 1:
            raise NotPlainError("its instructions leave no value")
        return self.stack[0]

    def carry_out(self, name: str, argument: Any) -> None:
        """Do one instruction."""
        if name in NUMBERS:
            self._push(argument)
        elif name in TEXTS:
            self._push(argument if len(argument) <= KEPT_CHARACTERS else OPAQUE)
        elif name in CONSTANTS:
            self._push(CONSTANTS[name])
        elif name in TAKEN:
            self._take(TAKEN[name])
            self._push(OPAQUE)
        elif name in TAKEN_TO_MARK:
            self._to_mark()
            self._push(OPAQUE)
        elif name in TUPLES:
            self._push_items(self._take(TUPLES[name]))
        elif name not in IGNORED and not self._memoised(name, argument):
            self._build(name)

    def _memoised(self, name: str, argument: Any) -> bool:
        if name in ("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"):
            self._count(1)
            self.memo[len(self.memo) if argument is None else argument] = self._top()
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            self._push(self.memo[argument])
        else:
            return False
        return True

    def _build(self, name: str) -> None:
        match name:
            case "MARK":
                self._push(_MARK)
            case "EMPTY_LIST":
                self._push(Items())
            case "EMPTY_DICT":
                self._push({})
            case "LIST" | "TUPLE":
                self._push_items(self._to_mark())
            case "DICT":
                values = self._to_mark()
                self._push({})
                self._set(values)
            case "APPEND" | "APPENDS" | "ADDITEMS":
                values = self._take(1) if name == "APPEND" else self._to_mark()
                into = self._top()
                if isinstance(into, Items):
                    self._count(into.add(values))
            case "SETITEM" | "SETITEMS":
                self._set(self._take(2) if name == "SETITEM" else self._to_mark())
            case "POP":
                self._take(1)
            case "POP_MARK":
                self._to_mark()
            case "DUP":
                self._push(self._top())
            case _:
                raise NotPlainError(f"an instruction {name}")

    def _set(self, values: list[Any]) -> None:
        into = self._top()
        if len(values) % 2:
            raise NotPlainError("a dict with a key and no value")
        if isinstance(into, dict):
            self._count(len(values))
            for key, value in _pairs(values):
                if type(key) in (str, int):
                    into[key] = value

    def _push_items(self, values: list[Any]) -> None:
        items = Items()
        self._count(items.add(values))
        self._push(items)

    def _push(self, value: Any) -> None:
        if len(self.stack) >= MAX_STORED:
            raise NotPlainError(f"more than {MAX_STORED:,} values at once")
        self.stack.append(value)

    def _count(self, more: int) -> None:
        self.stored += more
        if self.stored > MAX_STORED:
            raise NotPlainError(f"more than {MAX_STORED:,} stored values")

    def _top(self) -> Any:
        if not self.stack:
            raise NotPlainError("an instruction without its value")
        return self.stack[-1]

    def _take(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise NotPlainError("an instruction without its value")
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def _to_mark(self) -> list[Any]:
        taken: list[Any] = []
        while self.stack:
            value = self.stack.pop()
            if value is _MARK:
                return taken[::-1]
            taken.append(value)
        raise NotPlainError("a group without a beginning")


def _pairs(values: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(values[::2], values[1::2], strict=True)
