#!/usr/bin/env bash
# Makes (or completes) the virtual environment given as the first argument: everything georope needs, tested together.
# A torch that is already installed there is kept. mmcv is compiled once, without its CUDA ops, which georope does not
# use; later runs take pip's cached wheel, and a wheel that was built against another torch is noticed and rebuilt.
# MMCV_CUDA=1 compiles mmcv's CUDA ops too, for other models in the same environment.
set -euo pipefail
venv=${1:-.venv}
cd "$(dirname "$0")/.."
stamp=$venv/.georope-$(cat requirements/*.txt setup.py tools/setup_env.sh | cksum | cut -d' ' -f1)${MMCV_CUDA:+-cuda}
[ -e "$stamp" ] && exit 0

say() { printf '\033[1m[set-up, %3d s]\033[0m %s\n' "$SECONDS" "$*"; }
stop() { say "$*"; exit 1; }
[ -x "$venv/bin/python" ] || { say "creating $venv"; "${PYTHON:-python3}" -m venv "$venv"; }
python=$venv/bin/python
"$python" -c 'import sys; assert sys.version_info[:2] >= (3, 9), sys.version' ||
    stop 'python >= 3.9 is needed (3.11 is tested); run with PYTHON=python3.11'
pip() { "$python" -m pip --disable-pip-version-check "$@"; }

say 'build tools, numpy, torch'
pip install -q -c requirements/pins.txt setuptools wheel ninja numpy uv
"$python" -c 'import torch' 2>/dev/null || pip install -q -c requirements/pins.txt torch
"$python" -c 'import torch, re; assert tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) >= (2, 1)' ||
    stop 'the torch installed here is older than 2.1; install a newer one first'
# Keeps the installers from exchanging the torch that is there, whatever the pins say.
torch_version=$("$python" -c 'import torch; print(torch.__version__.split("+")[0])')
constraints=$venv/.constraints.txt
sed "s/^torch==.*/torch==$torch_version/" requirements/pins.txt >"$constraints"

# uv is several times faster than pip, but knows nothing of pip's settings (an own index, say): pip is the second try.
libraries() {
    VIRTUAL_ENV=$venv "$venv/bin/uv" pip install -q -c "$constraints" "$@" ||
        { say 'uv could not install them, trying pip'; pip install -q -c "$constraints" "$@"; }
}
install_libraries() {
    libraries nuscenes-devkit motmetrics pandas packaging -r requirements/openmmlab.txt -r requirements/dev.txt \
        -r requirements/export.txt
    libraries --no-deps mmengine mmdet mmdet3d lyft-dataset-sdk timm
}

cuda_of_mmcv() { "$python" -c 'from mmcv.ops import get_compiling_cuda_version as v; print(v())'; }
mmcv_works() {
    if [ -n "${MMCV_CUDA:-}" ]; then cuda_of_mmcv 2>&1 | grep -q '^[0-9]'
    else "$python" -c 'import mmcv.ops' >/dev/null 2>&1; fi
}
if [ -n "${MMCV_CUDA:-}" ]; then
    cuda=$("$python" -c 'import torch; print(torch.version.cuda)')
    nvcc=$(nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
    [ "$cuda" = "$nvcc" ] || stop "MMCV_CUDA=1 needs the nvcc of torch's CUDA: torch has $cuda, nvcc ${nvcc:-none}"
    mmcv_kind="with its CUDA $cuda ops" gpu_settings=(FORCE_CUDA=1) cache=--no-cache-dir
else
    mmcv_kind="without its CUDA ops, which georope does not use (MMCV_CUDA=1 compiles them too)"
    gpu_settings=(FORCE_CUDA=0 CUDA_VISIBLE_DEVICES=) cache=
fi
# Python's own flags without debugging symbols, and torch's headers compiled once for all files: a fifth of the time, the
# same optimisation. Where that fails, or for another compiler than gcc, every file reads the headers as usual.
flags="$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("CFLAGS"))') -g0 ${CFLAGS:-}"
headers=$(cd "$venv" && pwd)/.mmcv_headers/torch.h
precompile_headers() {
    mkdir -p "${headers%/*}"
    echo '#include <torch/types.h>' >"$headers"
    "${CXX:-c++}" --version | grep -q 'Free Software Foundation' || return 0
    # shellcheck disable=SC2046,SC2086
    "${CXX:-c++}" $flags -fPIC -std=c++17 -DTORCH_API_INCLUDE_EXTENSION_H -DTORCH_EXTENSION_NAME=_ext $("$python" -c '
import sysconfig, torch.utils.cpp_extension as torch
print(*("-I" + path for path in (*torch.include_paths(), sysconfig.get_path("include"))))') \
        -x c++-header -c "$headers" -o "$headers.gch" 2>/dev/null || true
}
install_mmcv() {
    local log=$venv/mmcv.log
    if [ -n "$cache" ] || ! pip cache list mmcv 2>/dev/null | grep -q '^ *-'; then precompile_headers; fi
    local compile=$flags
    [ -e "$headers" ] && compile="$flags -include $headers"
    # Ninja's [done/all] is the progress shown.
    env MMCV_WITH_OPS=1 CFLAGS="$compile" "${gpu_settings[@]}" "$python" -m pip --disable-pip-version-check install -v \
        $cache -c "$constraints" --no-build-isolation --no-deps --force-reinstall mmcv 2>&1 | tee "$log" |
        { grep --line-buffered -oE '^ *\[[0-9]+/[0-9]+\]' || true; } |
        while read -r done; do printf '\r%s ' "$done"; done ||
        { tail -n 30 "$log"; stop "mmcv could not be built; all of its output is in $log"; }
    echo
    rm -rf "${headers%/*}"
}

say "mmcv $mmcv_kind: compiled unless pip has its wheel; the libraries meanwhile"
install_libraries &
# numpy is enough to build mmcv, importing it needs the libraries.
"$python" -c 'import mmcv' 2>/dev/null || install_mmcv
say 'waiting for the libraries'
wait $! || stop 'a library could not be installed; see the error above'
if ! mmcv_works; then
    say 'mmcv here was built against another torch or without what is asked for: building it again'
    pip cache remove mmcv >/dev/null
    install_mmcv
    "$python" -c 'import mmcv.ops' || stop 'mmcv.ops does not load; see the error above'
fi

say 'georope (editable)'
pip install -q -c "$constraints" --no-deps --no-build-isolation -e .
"$python" -c 'import georope'
rm -f "$venv"/.georope-*
touch "$stamp"
say "ready: $("$python" -c 'import georope, torch; print(f"georope {georope.__version__}, torch {torch.__version__}")')"
