"""Usage records: what every client used, requested and waited, one line per second (quotas/usage_record.py).

`table.py` counts on the data path. `recorder.py` makes a line of the counts once a second. A sink delivers the line
in a thread of its own: `file_sink.py` or `kafka_sink.py`.
"""
