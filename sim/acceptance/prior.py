"""How requests differ where nobody has measured it: assumed, after the runs that were recorded."""

from __future__ import annotations

from tlt.sim.acceptance.population import Population

# Assumed: the middle of what `tlt sim fit-acceptance` finds in three recordings of SmolLM2-135M on H200.
# Spread: 0.77 (a training run of four policies, fits/smollm2-135m-h200.json), 0.55 (responses of up to
# 2,048 tokens), 0.14 (a head that was trained for 100 s and hardly accepted anything). Its correlation with
# the length: 0.50, 0.15, not to be told; inside a prompt's group: 0.99, 0.93, 0.2. The spread between bins
# of a response, 0.08 to 0.5, is left out: it averages out over a response. In the second and third, 95 % of
# the responses went on behind the end of their turn to the limit (the model had been taught to end a turn
# with another token than the engine stopped at): what they say of a response's end is not natural.
PRIOR = Population(request_spread=0.5, length_correlation=0.35, group_correlation=0.9)
# Standard deviations of the prior's spread, of its log, and of its slope (-0.15 to 0.06 in those recordings):
# assumed.
SPREAD_ERROR = 0.4
SLOPE_ERROR = 0.1
