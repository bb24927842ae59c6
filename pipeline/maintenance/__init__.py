"""Maintenance of the pipeline's folder: compaction, pruning, status."""
