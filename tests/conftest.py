"""What all tests share: one hypothesis profile, and the fast lane."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Machines are shared: how long an example takes says nothing about the code.
settings.register_profile("tlt", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tlt")
