"""Sweeps: every combination of values of some fields, simulated once, as one table."""
