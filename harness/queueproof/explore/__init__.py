"""Controlled runs: programs, schedules, the runner that steps them, and shrinking."""
