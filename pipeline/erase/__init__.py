"""Removes all rows of one client from all data of the pipeline.

`client` finds the client's rows. `tables`, `usage_files` and `results` each count or erase them in one kind of place.
`erasure` does all of it, in an order in which jobs that run meanwhile cannot bring rows back.
"""
