"""Measures how many small faults in the pure code the unit tests find."""
