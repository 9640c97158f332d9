"""File formats of frameworks and benchmarks: of trainers, of their metrics, and of serving."""
