"""The pipeline's data on any storage: where it is, and how it is read and written.

`layout` names columns, `tables` makes commits, `files` opens files, `offset_index` records which lines have been
read. Workers read and write `raw_table`, `compacted_days`, `compacted_files` and `partitioned_files`.
"""
