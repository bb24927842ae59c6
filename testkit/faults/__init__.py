"""Faults for simulated and real processes: one language for schedules, and what does them to real processes.

`schedule.py` is the language: a fault, kinds that dice draw from, and a schedule that is text. `effects.py` has what
happens to real processes, and checks that it begins and ends; `play.py` carries out the faults of a round.
"""
