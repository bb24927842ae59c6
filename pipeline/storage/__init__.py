"""Where the pipeline keeps what, and the one way to read and write it.

`layout` names folders and columns, `store` reads and writes small files, `offset_index` and `index_files` know which
lines have been read. `raw_files`, `compacted_files` and `compacted_days` read and write the tables in the workers.
"""
