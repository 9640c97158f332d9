"""What the simulator takes: two revisions side by side (`python -m benchmarks.revisions OLD NEW`)."""
