"""From usage records to quotas: PySpark jobs that ingest, report, simulate and recommend.

Shares with the gateway the layout of a usage record and the quota algorithms (`quotas`), and nothing else.
"""
