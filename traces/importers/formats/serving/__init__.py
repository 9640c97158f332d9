"""Requests of serving benchmarks and services: one format a module."""
