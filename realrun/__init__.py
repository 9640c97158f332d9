"""The same decisions on a live engine: replay, calibration and training on vLLM."""
