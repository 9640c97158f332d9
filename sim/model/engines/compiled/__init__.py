"""Jump mode with its inner loops compiled by numba, the extra `fast`: the same bits, in less time."""
