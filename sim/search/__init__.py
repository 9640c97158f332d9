"""The best cluster under a budget of GPUs, and what to measure next to be surer."""
