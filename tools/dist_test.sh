#!/usr/bin/env bash
# dist_test.sh CONFIG CHECKPOINT GPUS [arguments of test.py]; see dist_train.sh.
set -euo pipefail
[ $# -ge 3 ] || { echo "usage: $0 CONFIG CHECKPOINT GPUS [arguments of test.py]" >&2; exit 2; }
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec python -m torch.distributed.run \
    --nnodes="${NNODES:-1}" \
    --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" \
    --nproc_per_node="$3" \
    --master_port="${PORT:-29500}" \
    "$(dirname "$0")/test.py" "$1" "$2" --launcher pytorch "${@:4}"
