"""Faults for simulated and real processes: a common language for schedules, and the effects on real processes.

`schedule.py` is the language: a fault, kinds from which random numbers choose, and a schedule as text. `effects.py`
makes the effects on real processes, and checks that they begin and end. `play.py` carries out the faults of a round.
"""
