"""Arrays without an owner, for inner loops.

Compiled code counts who refers to an array, atomically and at each view and call: that took half of the time
of a rollout. Arrays that a caller holds anyway need no counting.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array


@intrinsic
def bare(typing_context, value):
    """Return an array, or a tuple with arrays in it, that nobody counts; the caller has to hold it."""
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _without_owner(context, builder, signature.return_type, arguments[0])

    return value(value), generate


def _without_owner(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    if isinstance(kind, types.Array):
        array = make_array(kind)(context, builder, value)
        array.meminfo = cgutils.get_null_value(array.meminfo.type)
        array.parent = cgutils.get_null_value(array.parent.type)
        return array._getvalue()
    if isinstance(kind, types.BaseTuple):
        parts = cgutils.unpack_tuple(builder, value)
        bare_parts = [
            _without_owner(context, builder, each, part) for each, part in zip(kind, parts, strict=True)
        ]
        return context.make_tuple(builder, kind, bare_parts)
    return value
