#!/usr/bin/env bash
# Measure callboard on a machine with a GPU: tests that need one, kernels, whole workloads, steps, serving, starting.
#
#     bash bench/gpu.sh [quick] [--device cpu] [--model NAME ...] [--only PART ...] [--minutes N]
#
# Needs a Python with torch, triton and transformers (PYTHON=... to name it); callboard itself need not be installed.
# Prints one table beside what others reach and what the hardware allows, and writes bench/results/gpu.json.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-python3}"
if ! "$python" -c 'import callboard' 2>/dev/null; then
    # The repository's root is the package: a link by its name makes it importable.
    folder="$(mktemp -d)"
    trap 'rm -rf "$folder"' EXIT
    ln -s "$PWD" "$folder/callboard"
    export PYTHONPATH="$folder${PYTHONPATH:+:$PYTHONPATH}"
fi
"$python" bench/gpu.py "$@"
