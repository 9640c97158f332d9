"""Sessions of agents as serving systems and benchmarks record them: one format a module."""
