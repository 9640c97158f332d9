"""A run that somebody observed, under the policies and schedules it did not use."""
