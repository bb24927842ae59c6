"""Checks that every usage line counts once, however often an ingest is killed."""
