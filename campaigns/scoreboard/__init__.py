"""The scoreboard, which `python -m campaigns.scoreboard` writes: goals compared with kept results.

`rows.py` has the promises as data, `kept.py` reads results, `judged.py` compares both, `page.py` renders the page.
"""
