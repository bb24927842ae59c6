"""From usage records to quotas: Spark jobs that ingest, compact, report, simulate and recommend.

`cli` starts a job of `jobs`, which reads its arguments and calls the packages below it, from the top:

    report, recommend, cost       what was used; which quotas fit; what teams pay
    teams                         which client belongs to which team
    replay                        the quota algorithms over recorded days
    plans, ingest, maintenance    plans and their application; lines in; days compacted, old data deleted
    storage                       folders, tables and small files: the seam between the jobs
    spark                         the Spark session and its Kafka connector

Shares with the gateway the layout of a usage record and the quota algorithms (`quotas`), and nothing else.
"""
