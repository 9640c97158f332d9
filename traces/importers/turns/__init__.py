"""Turns of what is read: of responses that had several, and of requests that belong to a session."""
