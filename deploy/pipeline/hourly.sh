#!/bin/sh
# What the pipeline does each hour: reads new usage records and compacts the days that are over. When a day was
# compacted, it recommends quotas and deletes what is old. Applying a plan is for people, unless SLUICE_APPLY_TO is set.
#
#   SLUICE_SOURCE   where records are: files:/var/lib/sluice/usage, or kafka:__sluice_usage@kafka-1:9092
#   SLUICE_OUT      the pipeline's folder
#   SLUICE_METRICS  optional: a file for node_exporter's textfile collector, such as .../sluice.prom
#   SLUICE_APPLY_TO optional: a gateway's HOST:PORT, at which each new plan is applied. A plan that a person should see
#                   first is not applied, and the script ends with 5. SLUICE_OUT is a folder of this machine then.
#   SLUICE_APPLY_CONFIG  optional: the connection's settings, as of `plan apply --client-config`
#
# It ends with 0 also if there was nothing to do (3) or a day is not complete yet (4). Any other code of a step ends it
# with this code, after the metrics are written. Run as often as you like: each step continues where the last one ended.
set -u
: "${SLUICE_SOURCE:?}" "${SLUICE_OUT:?}"

step() {
    sluice-pipeline "$@"
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

step ingest --out "$SLUICE_OUT" --from "$SLUICE_SOURCE"
step compact --out "$SLUICE_OUT"
if [ "$code" -eq 0 ]; then
    # The plan of this run and no other: people may leave plans of their own in the folder.
    plan="$SLUICE_OUT/results/plan/run=$(date -u +%Y-%m-%dT%H%M%SZ)/plan.json"
    step recommend --out "$SLUICE_OUT" ${SLUICE_APPLY_TO:+--plan "$plan"}
    recommended=$code
    step prune --out "$SLUICE_OUT" --yes
    if [ -n "${SLUICE_APPLY_TO:-}" ] && [ "$recommended" -eq 0 ]; then
        step plan apply "$plan" --unattended --bootstrap "$SLUICE_APPLY_TO" \
            ${SLUICE_APPLY_CONFIG:+--client-config "$SLUICE_APPLY_CONFIG"}
    fi
fi
exit 0
