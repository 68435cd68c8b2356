#!/usr/bin/env bash
# slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [arguments of test.py]; see slurm_train.sh.
set -euo pipefail
[ $# -ge 4 ] || { echo "usage: $0 PARTITION JOB_NAME CONFIG CHECKPOINT [arguments of test.py]" >&2; exit 2; }
gpus_per_node=${GPUS_PER_NODE:-8}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# shellcheck disable=SC2086
exec srun -p "$1" \
    --job-name="$2" \
    --gres=gpu:"$gpus_per_node" \
    --ntasks="${GPUS:-8}" \
    --ntasks-per-node="$gpus_per_node" \
    --cpus-per-task="${CPUS_PER_TASK:-5}" \
    --kill-on-bad-exit=1 \
    ${SRUN_ARGS:-} \
    python -u "$(dirname "$0")/test.py" "$3" "$4" --launcher=slurm "${@:5}"
