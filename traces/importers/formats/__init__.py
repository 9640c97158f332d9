"""One file format of a framework or benchmark a module."""
