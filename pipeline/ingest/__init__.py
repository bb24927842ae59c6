"""Usage lines into the raw table, each exactly once.

`sources` are the streams, `lines` and `collector` make columns of lines, `writer` publishes a batch.
"""
