"""Where the pipeline keeps what, and the one way to read and write it, on any storage.

`layout` names columns, `tables` makes commits, `files` opens files, `offset_index` knows which lines have been read.
`raw_table`, `compacted_days`, `compacted_files` and `partitioned_files` are read and written by the workers.
"""
