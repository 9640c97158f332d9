"""What can look wrong in a run, a group of checks a module."""
