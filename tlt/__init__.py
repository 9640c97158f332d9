"""Long-tail rollouts: what they leave idle, and the speculation policy that uses it."""
