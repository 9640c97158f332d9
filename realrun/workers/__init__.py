"""One worker: its loop, its process, and where processes run."""
