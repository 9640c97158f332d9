"""What RL trainers write a response a record: one format a module."""
