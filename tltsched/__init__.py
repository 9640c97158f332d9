"""Decisions of an RL rollout as pure state machines: events in, commands out.

Two rules hold for every module of this package. Time arrives inside events, and random numbers come from
a generator that the caller passes in; so the simulator and a live engine can drive the same object, and a
recorded run can be replayed to the same bytes.
"""
