"""The pipeline's folder kept in order: days compacted, old data deleted, and what is there and what is missing."""
