"""Sessions of several turns in the model: their turns and tools, their pool on a worker, its prefix cache."""
