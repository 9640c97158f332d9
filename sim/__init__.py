"""The model: clusters on a simulated clock, and the studies made with it. Start with simulation.py."""
