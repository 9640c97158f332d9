"""One engine on the simulated clock: its batch and queue, and two ways to let a decision interval pass."""
