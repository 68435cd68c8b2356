#!/usr/bin/env bash
# Makes (or completes) the virtual environment given as the first argument: everything georope needs, tested together.
# A torch that is already installed there is kept; mmcv is compiled once (about 11 minutes on two cores), later runs
# take pip's cached wheel, and a wheel that was built against another torch is noticed and rebuilt.
set -euo pipefail
venv=${1:-.venv}
cd "$(dirname "$0")/.."
stamp=$venv/.georope-$(cat requirements/*.txt setup.py tools/setup_env.sh | cksum | cut -d' ' -f1)
[ -e "$stamp" ] && exit 0

say() { printf '\033[1m[set-up]\033[0m %s\n' "$*"; }
[ -x "$venv/bin/python" ] || { say "creating $venv"; "${PYTHON:-python3}" -m venv "$venv"; }
python=$venv/bin/python
"$python" -c 'import sys; assert sys.version_info[:2] >= (3, 9), sys.version' ||
    { say "python >= 3.9 is needed (3.11 is tested); run with PYTHON=python3.11"; exit 1; }
pip() { "$python" -m pip --disable-pip-version-check "$@"; }
pins='-c requirements/pins.txt'

say 'build tools, numpy, torch'
pip install -q $pins setuptools wheel ninja numpy
if ! "$python" -c 'import torch' 2>/dev/null; then
    pip install -q $pins torch
elif ! "$python" -c 'import torch, re; assert tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) >= (2, 1)'; then
    say 'the torch installed here is older than 2.1; install a newer one first'; exit 1
fi
# Keeps pip from exchanging the torch that is there, whatever the pins say.
torch_version=$("$python" -c 'import torch; print(torch.__version__.split("+")[0])')
constraints=$venv/.constraints.txt
sed "s/^torch==.*/torch==$torch_version/" requirements/pins.txt >"$constraints"
pins="-c $constraints"

say 'libraries'
pip install -q $pins nuscenes-devkit motmetrics pandas packaging -r requirements/openmmlab.txt -r requirements/dev.txt
pip install -q $pins --no-deps mmengine mmdet mmdet3d lyft-dataset-sdk

say 'mmcv (compiled when pip has no wheel of it yet: about 11 minutes on two cores)'
mmcv_works() { "$python" -c 'import mmcv.ops' >/dev/null 2>&1; }
install_mmcv() { MMCV_WITH_OPS=1 pip install $pins --no-build-isolation --no-deps --force-reinstall "$@" mmcv; }
if ! mmcv_works; then
    install_mmcv -q
    if ! mmcv_works; then
        say 'the cached wheel of mmcv was built against another torch: rebuilding'
        pip cache remove mmcv >/dev/null
        install_mmcv -q
        "$python" -c 'import mmcv.ops' || { say 'mmcv.ops does not load; see the error above'; exit 1; }
    fi
fi

say 'georope (editable)'
pip install -q $pins --no-deps --no-build-isolation -e .
"$python" -c 'import georope'
rm -f "$venv"/.georope-*
touch "$stamp"
say "ready: $("$python" -c 'import georope, torch; print(f"georope {georope.__version__}, torch {torch.__version__}")')"
