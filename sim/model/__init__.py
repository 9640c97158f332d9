"""What is simulated: cluster, workers, their batches, acceptance, drafter and phases. Nothing reads a
file."""
