#!/usr/bin/env bash
# Measures generator, trainer, weight updates and mismatch on one GPU in ten minutes; bench/gpu.md explains the numbers.
#
#     bash bench/gpu.sh [--cpu] [--model FOLDER] [--minutes 10] [--out FOLDER]
#
# Needs Linux, Python >= 3.11 (PYTHON=... names one; uv brings one where it is there), an NVIDIA driver, a C compiler and
# 20 GB of disk. Makes .venv-gpu, with vLLM and its torch; with --cpu, .venv-cluster by the Makefile.
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() {
    echo "gpu.sh: $*" >&2
    exit 2
}

# The first Python that is new enough.
find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3.12 python3.13 python3.11 python3; do
        if "$candidate" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

make_environment() {
    local environment=$repository/.venv-gpu python
    if [[ -e $environment/.ready && ! $repository/pyproject.toml -nt $environment/.ready ]]; then
        return
    fi
    echo "gpu.sh: installing vLLM and torch into .venv-gpu; several GB, some minutes" >&2
    if [[ ! -x $environment/bin/python ]]; then
        if python=$(find_python); then
            "$python" -m venv "$environment"
        elif command -v uv >/dev/null; then
            uv venv --seed --python 3.12 "$environment"
        else
            fail "no Python >= 3.11 with venv; install python3.12-venv or uv, or name one with PYTHON=..."
        fi
    fi
    "$environment/bin/python" -m pip install --quiet --upgrade pip
    "$environment/bin/python" -m pip install --quiet -e "${repository}[train,vllm]"
    touch "$environment/.ready"
}

# Triton compiles small launchers when vLLM starts.
check_compiler() {
    local headers
    command -v cc >/dev/null || command -v gcc >/dev/null || fail "no C compiler; install gcc (vLLM's kernels need one)"
    headers=$("$repository/.venv-gpu/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    [[ -e $headers/Python.h ]] || fail "no $headers/Python.h; install python3-dev (vLLM's kernels need it)"
}

# Only the first card is measured.
use_one_card() {
    nvidia-smi -L >/dev/null 2>&1 || fail "no NVIDIA GPU answers to nvidia-smi; --cpu runs without one"
    export CUDA_DEVICE_ORDER=PCI_BUS_ID
    export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
    CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES%%,*}
}

on_cpu=no
for option in "$@"; do
    case $option in
        --cpu) on_cpu=yes ;;
        -h | --help)
            sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
            exit 0
            ;;
    esac
done
if [[ $on_cpu == yes ]]; then
    python=$(find_python) || fail "no Python >= 3.11 with venv; name one with PYTHON=..."
    make --silent --directory "$repository" PYTHON="$python" .venv-cluster/.ready >&2
    exec "$repository/.venv-cluster/bin/python" "$repository/bench/gpu.py" "$@"
fi
use_one_card
make_environment
check_compiler
exec "$repository/.venv-gpu/bin/python" "$repository/bench/gpu.py" "$@"
