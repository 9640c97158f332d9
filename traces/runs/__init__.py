"""The files that every run leaves, simulated or measured, and how to read them."""
