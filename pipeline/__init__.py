"""From usage records to quotas: Spark jobs that ingest, compact, report, simulate and recommend.

`cli` starts a job of `jobs`, which reads its arguments and calls the packages below it, from the top:

    report, recommend, cost       use of clients; recommended quotas; costs of teams
    teams                         which client belongs to which team
    replay                        the quota algorithms over recorded days
    plans, ingest, maintenance    plans and their application; reading lines; compacting days, deleting old data
    storage                       folders, tables and small files: the interface between the jobs
    spark                         the Spark session and its Kafka connector

Shares only the layout of a usage record and the quota algorithms (`quotas`) with the gateway.
"""
