"""One worker: its loop, its process, and what it and the driver say to each other."""
