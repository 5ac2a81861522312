#!/usr/bin/env bash
# Everything that needs GPUs, in one go:
#
#   bash benchmarks/gpu.sh 1     kernels: tests, products, Nsight Compute counters, compute-sanitizer;
#                                the ladder on one GPU
#   bash benchmarks/gpu.sh 2     the ladder on two GPUs and its profiles; 4: on four
#
# Results are merged into benchmarks/results/ and profiles/ladder/. PYTHON: the python to use.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ranks=${1:-1}
python=$(command -v "${PYTHON:-python3}")
began=$SECONDS
part() { echo "== $* ($((SECONDS - began)) s)"; }

part "ladder on $ranks"
mpirun --bind-to none -n "$ranks" "$python" benchmarks/ladder.py
if [ "$ranks" = 1 ]; then
    part "tests"
    "$python" -m pytest -q -m gpu tests -p no:cacheprovider
    part "products"
    "$python" benchmarks/gemm.py
    part "counters"
    "$python" benchmarks/gemm_ncu.py
    part "counters of the trainer"
    "$python" benchmarks/counters.py
    part "sanitizer"
    "$python" benchmarks/sanitize.py
else
    part "profiles"
    "$python" profiles/collect_ladder.py profiles/ladder --ranks "$ranks" --machine "h200x$ranks" \
        --rungs document pinned host-flat prefetch resident chunked nccl graph thin "fused x3" \
        "peer x3" "model host" "model nccl"
fi
part done
