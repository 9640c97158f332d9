"""What RL trainers log of a step: means and times, no single response."""
