#!/usr/bin/env bash
# Everything that needs GPUs, in one go:
#
#   bash benchmarks/gpu.sh 1     kernels: tests, products, Nsight Compute counters;
#                                the ladder, the ResNets, networks by layer and vector addition on one GPU
#   bash benchmarks/gpu.sh 2     the ladder on two GPUs and its profiles, the ResNets, utilization;
#                                4: on four
#   bash benchmarks/gpu.sh 1 vecadd tta          only these parts
#
# Results are merged into benchmarks/results/ and profiles/ladder/. A part that hangs or fails leaves
# the rest; the last line names those that did. Environment:
#
#   PYTHON                            the python to use
#   GPU_NAME                          how the time to accuracy's file is called (h200)
#   LOGS                              where each part's output is kept, NAME.log (build/gpu)
#   PART_S, LADDER_S, PROFILES_S      seconds after which a part is ended (150, 240, 330)
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ranks=${1:-1}
only=" ${*:2} "
python=$(command -v "${PYTHON:-python3}")
logs=${LOGS:-build/gpu}
mkdir -p "$logs"
failed=() ran=" "

# part NAME SECONDS COMMAND...: run it; what it says is shown and kept.
part() {
    local name=$1 limit=$2 began=$SECONDS status
    shift 2
    [ "$only" = "  " ] || [[ $only == *" $name "* ]] || return 0
    ran+="$name "
    echo "== $name (at $SECONDS s, at most $limit s): $*"
    # Not a pipe: that would wait for whatever a killed part leaves behind.
    PYTHONUNBUFFERED=1 timeout --kill-after=10 "$limit" "$@" > >(tee "$logs/$name.log") 2>&1
    status=$?
    sleep 0.2 # tee's last lines
    echo "== $name: status $status, $((SECONDS - began)) s" | tee -a "$logs/$name.log"
    [ "$status" = 0 ] || failed+=("$name")
}

one=${PART_S:-150}
if [ "$ranks" = 1 ]; then
    part tests "$one" "$python" -m pytest -q -m gpu tests -p no:cacheprovider
    part products "$one" "$python" -m benchmarks.gemm
    part counters "$one" "$python" -m benchmarks.gemm.counters
    part steps "$one" "$python" -m benchmarks.gemm.steps --time --count
    part hopper "$one" "$python" -m benchmarks.gemm.hopper
    part trainer-counters "$one" "$python" -m profiles.collect_counters
    part layers 130 "$python" -m benchmarks.layers --part time gemms
    part vecadd 140 "$python" -m benchmarks.vecadd --part time profile
    part vecadd-lab 300 "$python" -m benchmarks.vecadd.lab
    part memory 90 "$python" -m benchmarks.memory
    part tta 90 "$python" -m benchmarks.tta --backend cupy --budget 55
    part tta-resnet 170 "$python" -m benchmarks.tta.resnet --name "${GPU_NAME:-h200}"
    part utilization-resnet 500 "$python" -m benchmarks.utilization.resnet \
        --seconds 180 20 15 15 180 # of every step, as long as it was recorded
    part machine 90 "$python" -m perfmodel machine measure -o benchmarks/results/machine_h200x1.toml
    part resnet-time "$one" "$python" -m benchmarks.resnet --part time
    part resnet-counters 390 "$python" -m benchmarks.resnet --part counters
    part resnet-tuned 100 "$python" -m benchmarks.resnet --part tuned
fi
if [ "$ranks" != 1 ]; then
    part resnet-ddp "$one" "$python" -m benchmarks.resnet --part "ddp$ranks"
    part ddp-lab "$one" "$python" -m torch.distributed.run --nproc-per-node "$ranks" \
        -m benchmarks.scaling.ddp_lab --out "benchmarks/results/ddp_lab_$ranks.json"
fi
if [ "$ranks" = 2 ]; then
    part memory-two 170 "$python" -m benchmarks.memory.two_gpus
    part utilization 90 "$python" -m benchmarks.utilization --ranks 2
fi
part ladder "${LADDER_S:-240}" mpirun --bind-to none -n "$ranks" "$python" -m benchmarks.ladder
if [ "$ranks" != 1 ]; then
    part profiles "${PROFILES_S:-330}" "$python" profiles/collect_ladder.py profiles/ladder \
        --ranks "$ranks" --machine "h200x$ranks" \
        --rungs document pinned host-flat prefetch resident chunked nccl graph thin "fused x3" \
        "peer x3" "model host" "model nccl"
fi
for name in "${@:2}"; do
    [[ $ran == *" $name "* ]] || failed+=("$name (no such part on $ranks)")
done
echo "== done in $SECONDS s; failed: ${failed[*]:-none}"
[ ${#failed[@]} = 0 ]
