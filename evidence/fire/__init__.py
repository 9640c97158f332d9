"""Shots at live runs: what is started, who is shot when, and what was left behind."""
