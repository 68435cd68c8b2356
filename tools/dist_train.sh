#!/usr/bin/env bash
# dist_train.sh CONFIG GPUS [arguments of train.py]: one process per GPU, or per CPU share where there is no GPU.
# Several machines: NNODES, NODE_RANK, MASTER_ADDR. Several runs on one machine: a PORT each.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: $0 CONFIG GPUS [arguments of train.py]" >&2; exit 2; }
# Ranks and their data workers share the cores: with more threads each they only wait for one another.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec python -m torch.distributed.run \
    --nnodes="${NNODES:-1}" \
    --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" \
    --nproc_per_node="$2" \
    --master_port="${PORT:-29500}" \
    "$(dirname "$0")/train.py" "$1" --launcher pytorch "${@:3}"
