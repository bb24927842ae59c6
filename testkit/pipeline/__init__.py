"""Helpers for the pipeline: made-up usage lines and days, Spark with settings for tests, ingests that are killed."""
