"""The common parts of the pages that jobs write."""
