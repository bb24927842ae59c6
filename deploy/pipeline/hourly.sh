#!/bin/sh
# What the pipeline does each hour: reads new usage records and compacts the days that are over. When a day was
# compacted, it recommends quotas and deletes what is old. It never applies a plan: that is for people.
#
#   SLUICE_SOURCE   where records are: files:/var/lib/sluice/usage, or kafka:__sluice_usage@kafka-1:9092
#   SLUICE_OUT      the pipeline's folder
#   SLUICE_METRICS  optional: a file for node_exporter's textfile collector, such as .../sluice.prom
#
# It ends with 0 also if there was nothing to do (3) or a day is not complete yet (4). Any other code of a step ends it
# with this code, after the metrics are written. Run as often as you like: each step continues where the last one ended.
set -u
: "${SLUICE_SOURCE:?}" "${SLUICE_OUT:?}"

step() {
    job=$1
    shift
    sluice-pipeline "$job" --out "$SLUICE_OUT" "$@"
    code=$?
    case $code in
        0 | 3 | 4) ;;
        *) exit "$code" ;;
    esac
}

write_metrics() {
    if [ -n "${SLUICE_METRICS:-}" ]; then
        sluice-pipeline status --out "$SLUICE_OUT" --prometheus "$SLUICE_METRICS"
    fi
}
trap write_metrics EXIT

step ingest --from "$SLUICE_SOURCE"
step compact
if [ "$code" -eq 0 ]; then
    step recommend
    step prune --yes
fi
exit 0
