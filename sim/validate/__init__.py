"""The model held against measured runs: replays of them, with modelled step times."""
