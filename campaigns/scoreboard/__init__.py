"""The scoreboard, which `python -m campaigns.scoreboard` writes: goals beside what kept results say.

`rows.py` has the promises as data, `kept.py` reads results, `judged.py` compares both, `page.py` writes the page.
"""
