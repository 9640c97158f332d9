"""The map of best draft lengths as pictures and tables."""
