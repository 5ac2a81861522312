#!/usr/bin/env bash
# Everything that needs GPUs, in one go:
#
#   bash benchmarks/gpu.sh 1     kernels: tests, products, Nsight Compute counters;
#                                the ladder, the ResNets, networks by layer and vector addition on one GPU
#   bash benchmarks/gpu.sh 2     the ladder on two GPUs and its profiles, strong and weak scaling,
#                                all-reduces, a tensor-parallel GPT, the ResNets, utilization
#   bash benchmarks/gpu.sh 8     GPTs that were predicted, and the same in 480 s; 4: on four
#   bash benchmarks/gpu.sh 1 vecadd tta          only these parts
#
# Results are merged into benchmarks/results/ and profiles/; benchmarks/README.md says what scores
# and joins them. A part that hangs or fails leaves the rest; the last line names those that did,
# and those that the budget left no time for. Environment:
#
#   PYTHON                            the python to use
#   GPU_NAME                          how the time to accuracy's file is called (h200)
#   LOGS                              where each part's output is kept, NAME.log (build/gpu)
#   LADDER                            the ladder's file (benchmarks/results/ladder.json, which is of
#                                     H200s; benchmarks.ladder.join adds another one's launches)
#   PART_S, LADDER_S, PROFILES_S      seconds after which a part is ended (150, 240, 330)
#   BUDGET_S                          seconds for all parts (480 on four and eight GPUs)
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ranks=${1:-1}
only=" ${*:2} "
python=$(command -v "${PYTHON:-python3}")
logs=${LOGS:-build/gpu}
mkdir -p "$logs"
failed=() late=() ran=" "
budget=${BUDGET_S:-$([ "$ranks" -gt 2 ] && echo 480 || echo 86400)}

# part NAME SECONDS COMMAND...: run it; what it says is shown and kept. One of several launches has
# several lines of one name.
part() {
    local name=$1 limit=$2 began=$SECONDS left=$((budget - SECONDS)) status
    shift 2
    [ "$only" = "  " ] || named "$name" || return 0
    [[ $ran == *" $name "* ]] || : > "$logs/$name.log"
    ran+="$name "
    [ "$limit" -le "$left" ] || limit=$left
    if [ "$limit" -lt 10 ]; then
        late+=("$name")
        return
    fi
    echo "== $name (at $SECONDS s, at most $limit s): $*"
    # Not a pipe: that would wait for whatever a killed part leaves behind.
    PYTHONUNBUFFERED=1 timeout --kill-after=10 "$limit" "$@" > >(tee -a "$logs/$name.log") 2>&1
    status=$?
    sleep 0.2 # tee's last lines
    echo "== $name: status $status, $((SECONDS - began)) s" | tee -a "$logs/$name.log"
    [ "$status" = 0 ] || failed+=("$name")
}

# named NAME: whether the command line asks for this part by its name.
named() { [[ $only == *" $1 "* ]]; }

# predicted NAME ...: a part of what is predicted for four and eight GPUs; on two by its name only.
predicted() { [ "$ranks" -le 2 ] && ! named "$1" || part "$@"; }

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
ladder=(--out "${LADDER:-benchmarks/results/ladder.json}")
if [ "$ranks" != 1 ]; then
    gpts=benchmarks/results/gpt/ranks${ranks}_$(date -u +%Y%m%dT%H%M%S) # launches on this host
    for launch in 1 2 3; do
        predicted gpt-ranks 50 "$python" -m torch.distributed.run --nproc-per-node "$ranks" \
            -m benchmarks.predict.gpt_runs "$gpts" --sizes ranks --tag "launch$launch" --both
    done
    predicted gpt-reports 100 "$python" -m benchmarks.predict.gpt_ranks record "$gpts" \
        --ranks "$ranks"
    for _ in 1 2; do
        part all-reduce 40 mpirun --bind-to none -n "$ranks" "$python" \
            -m benchmarks.scaling.all_reduce
    done
    reports=profiles/programs
    [ ! -e "$reports/gpt_tensor$ranks.sqlite.xz" ] || reports=$logs/programs # the shipped one stays
    part tensor 80 "$python" -m profiles.programs.record "$reports" "gpt_tensor$ranks"
    for p in 8 1 4 2; do # strong scaling at two sizes; weak: 3000 images a GPU
        [ "$p" -le "$ranks" ] || continue
        sizes=(512:3000 2048:12000)
        [ "$p" = 1 ] || sizes+=("512:$((3000 * p))")
        part scaling 60 mpirun --bind-to none -n "$p" "$python" -m benchmarks.ladder \
            --out "benchmarks/results/scaling_$ranks.json" --maths fp32 --sizes "${sizes[@]}" \
            --rungs document pinned nccl graph "fused x3" "peer x3" "model graph" \
            --peers ddp_eager graph_branches --rounds 5 --budget 3
    done
fi
if [ "$ranks" -gt 2 ]; then # what takes long and says little is left out
    ladder+=(--sizes 512:3000 2048:12000 --rounds 5 --budget 4 --leave-out cuda-aware ring
        --peers graph graph_manual graph_branches graph_compiled ddp_eager)
fi
part ladder "${LADDER_S:-240}" mpirun --bind-to none -n "$ranks" "$python" -m benchmarks.ladder \
    "${ladder[@]}"
if [ "$ranks" = 2 ]; then
    part memory-two 170 "$python" -m benchmarks.memory.two_gpus
    part utilization 90 "$python" -m benchmarks.utilization --ranks 2
fi
if [ "$ranks" != 1 ]; then
    [ "$ranks" = 8 ] || part resnet-ddp "$one" "$python" -m benchmarks.resnet --part "ddp$ranks"
    part ddp-lab "$one" "$python" -m torch.distributed.run --nproc-per-node "$ranks" \
        -m benchmarks.scaling.ddp_lab --out "benchmarks/results/ddp_lab_$ranks.json"
    part profiles "${PROFILES_S:-330}" "$python" -m profiles.collect_ladder profiles/ladder \
        --ranks "$ranks" --machine "h200x$ranks" \
        --rungs document pinned host-flat prefetch resident chunked nccl graph thin "fused x3" \
        "peer x3" "model host" "model nccl"
fi
for name in "${@:2}"; do
    [[ $ran == *" $name "* ]] || failed+=("$name (no such part on $ranks)")
done
echo "== done in $SECONDS s; failed: ${failed[*]:-none}; no time for: ${late[*]:-none}"
[ ${#failed[@]} = 0 ]
