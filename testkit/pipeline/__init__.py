"""The pipeline's part: usage lines and days made up, Spark as tests start it, ingests that are killed."""
