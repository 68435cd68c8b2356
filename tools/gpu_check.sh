#!/usr/bin/env bash
# First thing on a machine with a GPU: its GPU suite and the tables of tools/benchmark.py, within ten minutes.
#
#   tools/gpu_check.sh [OUT]      results go to OUT (default: the variable OUT, else gpu_check) as they come; the last
#                                 line of each part, its exit status and its seconds to OUT/summary.txt
#   tools/gpu_check.sh --pack PYTHON PACKAGE...
#                                 for a machine without network: puts mmengine, mmcv (compiled), mmdet, mmdet3d and the
#                                 PACKAGEs into .gpu_site.tar.xz. PYTHON has that machine's python and torch versions.
#
# The interpreter is PYTHON, else .venv/bin/python, else python3; where it lacks something, .gpu_site.tar.xz is laid
# over it, and where that file is not there, `make setup` is tried.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
packed=.gpu_site.tar.xz

if [ "${1:-}" = --pack ]; then
    set -e
    [ $# -ge 2 ] || { echo "usage: tools/gpu_check.sh --pack PYTHON PACKAGE..." >&2; exit 2; }
    python=$2 site=$(mktemp -d)
    trap 'rm -r "$site"' EXIT
    shift 2
    "$python" -m pip install -q 'setuptools<80' wheel ninja psutil
    MMCV_WITH_OPS=1 FORCE_CUDA=0 CUDA_VISIBLE_DEVICES= CFLAGS=-g0 "$python" -m pip install -q --target "$site" \
        -c requirements/pins.txt --no-deps --no-build-isolation mmcv mmengine mmdet mmdet3d "$@"
    find "$site" -depth -type d \( -name tests -o -name __pycache__ \) -exec rm -r {} +
    find "$site" -name '*.so*' -exec strip --strip-unneeded {} + 2>/dev/null || true
    tar -C "$site" -cf - . | xz -T0 >"$packed"
    ls -l "$packed"
    exit
fi

out=${1:-${OUT:-gpu_check}}
mkdir -p "$out"
out=$(cd "$out" && pwd)
summary=$out/summary.txt failed=0
: >"$summary"
say() { printf '[%3d s] %s\n' "$SECONDS" "$*" | tee -a "$summary"; }

# part NAME SECONDS COMMAND...: a part that fails or takes too long does not stop the others.
part() {
    local name=$1 limit=$2 start=$SECONDS status left=$((580 - SECONDS))
    shift 2
    limit=$((limit < left ? limit : left > 1 ? left : 1))
    timeout --kill-after=10 "$limit" "$@" >"$out/$name.log" 2>&1
    status=$?
    [ "$status" = 0 ] || failed=1
    [ "$status" != 124 ] || status="$status, stopped"
    say "$name: exit status $status, $((SECONDS - start)) s: $(tail -n 1 "$out/$name.log")"
}

python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
usable() { "$python" -c 'import georope' >"$out/import.log" 2>&1; }
if ! usable; then
    if [ -e "$packed" ]; then
        site=$(mktemp -d)
        tar -C "$site" -xJf "$packed"
        "$python" setup.py -q egg_info  # georope's own metadata, which its import reads
        export PYTHONPATH=$site:$PWD/projects
        say "packages of $packed over $python"
    else
        part setup 300 make setup
        python=.venv/bin/python
    fi
    usable || { say "$python does not import georope: $(tail -n 1 "$out/import.log")"; exit 1; }
fi
found=$("$python" -c 'import sys, torch
cuda = torch.cuda.is_available()
gpu = torch.cuda.get_device_name() if cuda else "no CUDA device, nothing to check"
print(f"python {sys.version.split()[0]}, torch {torch.__version__}, {gpu}")
sys.exit(not cuda)')
status=$?
say "$found"
[ "$status" = 0 ] || exit 1

export PYTHONUNBUFFERED=1
part suite 210 "$python" -m pytest tests/gpu -rs
part train-float16 150 "$python" tools/benchmark.py --train --amp float16 --repeats 12
part train-float32 110 "$python" tools/benchmark.py --train --repeats 5
part decoder-float16 60 "$python" tools/benchmark.py --amp float16 --batch 2 --repeats 30
for name in train-float16 train-float32 decoder-float16; do
    sed -n '/^Training steps\|^[0-9]* queries/,$p' "$out/$name.log"
    echo
done | tee "$out/tables.md"
cat "$summary"
exit "$failed"
