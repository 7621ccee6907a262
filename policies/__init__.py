"""The routing policies: pure functions of a request and a fleet. Nothing is defined here; see base.py."""
