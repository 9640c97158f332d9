"""RL training on live engines: steps, phases, checkpoints, and one worker of it."""
