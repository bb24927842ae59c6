"""Removes all rows of one client from everything that the pipeline keeps.

`client` says which rows are meant. `tables`, `usage_files` and `results` each count or erase them in one kind of
place; `erasure` does all of it in the order that leaves no way back for other jobs that run meanwhile.
"""
