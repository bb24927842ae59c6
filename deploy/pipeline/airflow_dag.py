"""Sluice's pipeline as a DAG of Airflow 3, each hour.

A task is skipped where there is nothing to do (3) or a day is not complete yet (4). Quotas are recommended only when
a day was compacted. Any other exit code fails the task. The programs are on the worker's PATH.
"""

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

SOURCE = "kafka:__sluice_usage@kafka-1:9092"
OUT = "/data/usage"
CONTINUES = [3, 4]

with DAG(
    "sluice_pipeline",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=5)},
) as dag:
    ingest = BashOperator(
        task_id="ingest",
        bash_command=f"sluice-pipeline ingest --from {SOURCE} --out {OUT}",
        skip_on_exit_code=CONTINUES,
    )
    compact = BashOperator(
        task_id="compact",
        bash_command=f"sluice-pipeline compact --out {OUT}",
        skip_on_exit_code=CONTINUES,
        trigger_rule="none_failed",
    )
    recommend = BashOperator(
        task_id="recommend",
        bash_command=f"sluice-pipeline recommend --out {OUT}",
        skip_on_exit_code=CONTINUES,
    )
    prune = BashOperator(
        task_id="prune",
        bash_command=f"sluice-pipeline prune --out {OUT} --yes",
        skip_on_exit_code=CONTINUES,
    )
    status = BashOperator(
        task_id="status",
        bash_command=f"sluice-pipeline status --out {OUT} --prometheus /var/lib/node_exporter/sluice.prom",
        skip_on_exit_code=CONTINUES,
    )
    # As a teardown it always runs, and its success does not hide the failure of another task.
    ingest >> compact >> recommend >> prune >> status.as_teardown()
