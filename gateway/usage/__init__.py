"""Usage records: what every client used, requested and waited, one line per second (quotas/usage_record.py).

`table.py` counts on the data path, `recorder.py` takes the counts once a second and makes a line of them, a sink
takes it away in a thread of its own: `file_sink.py` or `kafka_sink.py`.
"""
