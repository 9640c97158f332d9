"""Random numbers, sums and orders in compiled code, to the last bit those of NumPy.

NumPy's own C functions are called on the generator's state. Sums follow its pairwise summation.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llvmlite.binding
import numpy as np
from numba import types
from numpy.random import _generator

from tlt.sim.model.engines.compiled.cache import compiled

llvmlite.binding.load_library_permanently(_generator.__file__)
_ADDRESS = types.intp


def _external(name: str, signature: Any) -> Any:
    return types.ExternalFunction(name, signature)


_normals = _external(
    "random_standard_normal_fill", types.void(_ADDRESS, types.int64, types.CPointer(types.float64))
)
_uniforms = _external(
    "random_standard_uniform_fill", types.void(_ADDRESS, types.int64, types.CPointer(types.float64))
)
_multinomial = _external(
    "random_multinomial",
    types.void(
        _ADDRESS, types.int64, types.CPointer(types.int64), types.CPointer(types.float64), types.int64,
        types.CPointer(types.int64),
    ),
)  # fmt: skip
_uniform = _external("random_standard_uniform", types.float64(_ADDRESS))
_whole = _external("random_interval", types.int64(_ADDRESS, types.int64))
_WORD = 2**32 - 1
TINY = float(np.finfo(float).tiny)


def address_of(rng: np.random.Generator) -> int:
    """Return the address of a generator's state; the generator has to be kept."""
    return int(ctypes.cast(rng.bit_generator.ctypes.bit_generator, ctypes.c_void_p).value or 0)


@compiled
def normals(state, count):
    """Draw standard normal numbers, [count]."""
    drawn = np.empty(count)
    if count:
        _normals(state, count, drawn.ctypes)
    return drawn


@compiled
def uniforms(state, count):
    """Draw uniform numbers, [count]."""
    drawn = np.empty(count)
    if count:
        _uniforms(state, count, drawn.ctypes)
    return drawn


@compiled
def uniform(state):
    """Draw one uniform number."""
    return _uniform(state)


@compiled
def below(state, stop):
    """Draw a whole number below `stop` from 32 bits of a Mersenne twister as random.Random does."""
    bits = 0
    while stop >> bits:
        bits += 1
    drawn = stop
    while drawn >= stop:
        drawn = int(_whole(state, _WORD)) >> (32 - bits)
    return drawn


@compiled
def block(a, first, n):
    """Sum n <= 128 numbers from `first` on as NumPy does."""
    if n < 8:
        total = 0.0
        for i in range(first, first + n):
            total += a[i]
        return total
    r0, r1, r2, r3 = a[first], a[first + 1], a[first + 2], a[first + 3]
    r4, r5, r6, r7 = a[first + 4], a[first + 5], a[first + 6], a[first + 7]
    whole = n - n % 8
    for at in range(first + 8, first + whole, 8):
        r0 += a[at]
        r1 += a[at + 1]
        r2 += a[at + 2]
        r3 += a[at + 3]
        r4 += a[at + 4]
        r5 += a[at + 5]
        r6 += a[at + 6]
        r7 += a[at + 7]
    total = ((r0 + r1) + (r2 + r3)) + ((r4 + r5) + (r6 + r7))
    for at in range(first + whole, first + n):
        total += a[at]
    return total


@compiled
def pairwise(a, n):
    """Sum the first n numbers as NumPy does: halves (a multiple of 8 in the first) down to blocks of 128."""
    if n <= 128:
        return block(a, 0, n)
    # Frames of the recursion: where each begins, how many it has, its first half's sum once that is known.
    first, size, half = np.zeros(64, np.int64), np.zeros(64, np.int64), np.zeros(64)
    known = np.zeros(64, np.bool_)
    depth, size[0] = 0, n
    while True:
        while size[depth] > 128:
            left = size[depth] // 2 - (size[depth] // 2) % 8
            known[depth] = False
            first[depth + 1], size[depth + 1] = first[depth], left
            depth += 1
        total = block(a, first[depth], size[depth])
        depth -= 1
        while depth >= 0 and known[depth]:
            total = half[depth] + total
            depth -= 1
        if depth < 0:
            return total
        half[depth], known[depth] = total, True
        left = size[depth] // 2 - (size[depth] // 2) % 8
        first[depth + 1], size[depth + 1] = first[depth] + left, size[depth] - left
        depth += 1


@compiled
def multinomial(state, n, chance):
    """Draw how many of n fall to each of the chances, [categories]."""
    drawn = np.zeros(len(chance), np.int64)
    binomial = np.zeros(64, np.int64)  # what the C function remembers between calls
    _multinomial(state, n, drawn.ctypes, chance.ctypes, len(chance), binomial.ctypes)
    return drawn


@compiled
def rank(keys):
    """Return the stable order of whole numbers, [n]."""
    n = len(keys)
    if n > 32:
        return np.argsort(keys, kind="mergesort")
    order = np.arange(n)
    for i in range(1, n):
        moved = order[i]
        j = i - 1
        while j >= 0 and keys[order[j]] > keys[moved]:
            order[j + 1] = order[j]
            j -= 1
        order[j + 1] = moved
    return order
