"""How many drafts were accepted, as engines, benchmarks and trainers say it: one source a module."""
