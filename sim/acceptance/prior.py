"""How requests differ where nobody has measured it: assumed, after the runs that were recorded."""

from __future__ import annotations

from tlt.sim.acceptance.population import Population

# Assumed: what `tlt sim fit-acceptance` finds in a recorded training run (four policies, SmolLM2-135M, 4 x
# H200; fits/smollm2-135m-h200.json), rounded. By policy and half of the steps the spread is 0.73 to 0.94,
# its correlation with the length 0.37 to 0.56, inside a prompt's group at its bound, the slope -0.11 to
# 0.04 a bin. The spread between bins of a response is left out: it averages out over a response.
PRIOR = Population(request_spread=0.75, length_correlation=0.45, group_correlation=0.95)
# Standard deviations of the prior's spread, as a share of it, and of its slope: assumed, from the same
# runs, a second recording (one H200, 2,048 tokens: spread 0.55, slope -0.15) and a third with a head that
# was trained for 100 s and hardly accepted anything (0.14, 0.06).
SPREAD_ERROR = 0.35
SLOPE_ERROR = 0.1
