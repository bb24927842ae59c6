"""Usage lines into the raw table, each exactly once.

`sources` has the streams, `lines` and `collector` convert lines to columns, `writer` commits a batch.
"""
