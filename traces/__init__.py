"""Recorded and generated response lengths, and the files that a run leaves behind."""
