"""Arithmetic that gives a 135M model a reward in RL, and the supervised warm-up that teaches its form."""
