"""Simulated against measured, and recorded decisions replayed."""
