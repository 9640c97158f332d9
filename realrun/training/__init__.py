"""TLT's training loop on torch and a live engine: rollout, reward, log-probabilities, update, weight sync."""
