"""Recorded lengths on live engines under several policies, and the run folders of that."""
