#!/usr/bin/env bash
# Profile the trainer with Nsight Systems:
#
#   sbatch nsys.sh                              two ranks, the document's network
#   sbatch nsys.sh -- --hidden-size 1024        flags after -- go to python -m trainer
#   sbatch -p gpu --ntasks=4 --gpus=4 nsys.sh   another partition, more ranks
#   bash nsys.sh -- --backend numpy             without Slurm
#
# Environment:
#   NSYS_PER_RANK=1  one report per rank (default: one around the whole job, on one clock)
#   NSYS_MEMORY=1    record allocations, too, for perfmodel memory
#   NSYS_OUT         where reports go (./nsys-reports)
#   NSYS_TIMEOUT     seconds one attempt may take (900)
#   PERFMODEL_NSYS   the nsys to use, if it is not on the PATH
#   PYTHON           the python to use (python3)
#   RANKS            how many ranks (Slurm's --ntasks, else 2)
#
#SBATCH --job-name=perfmodel
#SBATCH --nodes=1
#SBATCH --ntasks=2
#SBATCH --cpus-per-task=4
#SBATCH --gpus=2
#SBATCH --time=00:15:00
#SBATCH --output=slurm-%j.out
set -euo pipefail

die() { echo "nsys.sh: $*" >&2; exit 1; }

case "${1:-}" in
    -h | --help) sed -n '2,/^#SBATCH/{/^#SBATCH/d;s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --) shift ;;
esac
# Three epochs of 20 batches: 40 and more after warm-up; no evaluation between them; before them 25
# that are timed without nsys. A flag given twice counts as it was given last, so the caller's win.
first=25
[ "${NSYS_MEMORY:-0}" != 1 ] || first=0 # or the recorded run finds memory allocated already
flags=(--epochs 3 --evaluate-every 0 --time-first $first "$@")

# Slurm runs a copy of this script from its spool directory; the trainer is where sbatch was called.
root=${SLURM_SUBMIT_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)}
[ -f "$root/trainer/__main__.py" ] ||
    die "expected trainer/ in $root; got none; call sbatch in the repository's root"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"

# ---- everything needed is there, or say what is not ----------------------------------
nsys=$(command -v "${PERFMODEL_NSYS:-nsys}") ||
    die "expected ${PERFMODEL_NSYS:-nsys}; got none; load its module (module load nsight-systems)" \
        "or set PERFMODEL_NSYS=/path/to/nsys"
# mpirun of Debian puts /usr/bin first in the ranks' PATH: name python absolutely
python=$(command -v "${PYTHON:-python3}") ||
    die "expected ${PYTHON:-python3}; got none; activate the environment or set PYTHON"
python=$("$python" -c 'import sys; print(sys.executable)')
mpirun=$(command -v mpirun) ||
    die "expected mpirun; got none; load an MPI module, or install openmpi-bin"
case $("$mpirun" --version 2>&1) in
    *"Open MPI"* | *OpenRTE*) impl=openmpi rank=OMPI_COMM_WORLD_RANK options=(--bind-to none) ;;
    *) impl=mpich rank=PMI_RANK options=() ;;
esac
"$python" -c 'import numpy, mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI' ||
    die "expected numpy and mpi4py for this MPI in $python (above: what is missing);" \
        "run: $python -m pip install numpy mpi4py"
"$python" -c 'import nvtx' 2>/dev/null ||
    die "expected the package nvtx in $python, without which reports hold no ranges;" \
        "run: $python -m pip install nvtx (nvtx==0.2.11 for Nsight Systems up to 2024.2)"
unheard=$("$python" - "$("$nsys" --version 2>/dev/null)" 2>/dev/null <<'END'
import sys
from importlib.metadata import version
from perfmodel.machines.doctor import nvtx_with_nsys, parse
probe = nvtx_with_nsys(parse(version("nvtx")), parse(sys.argv[1]))
print(*[f"{probe.found}; {probe.advice}"] * (probe.state == "broken"))
END
) || unheard=
[ -z "$unheard" ] || die "$unheard"
case " ${flags[*]} " in
    *" --backend numpy "* | *" --backend=numpy "*) ;;
    *)
        "$python" -c 'import cupy; assert cupy.cuda.runtime.getDeviceCount()' ||
            die "expected CuPy and a GPU on $(hostname) (above: what is missing); ask Slurm for GPUs" \
                "(--gpus), or profile on the CPU: nsys.sh -- --backend numpy"
        ;;
esac

# ---- a name that no other report has ----------------------------------------------------
out=${NSYS_OUT:-$PWD/nsys-reports}
mkdir -p "$out" || die "cannot write reports to $out; set NSYS_OUT"
if [ -n "${SLURM_ARRAY_JOB_ID:-}" ]; then
    name=job${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
elif [ -n "${SLURM_JOB_ID:-}" ]; then
    name=job$SLURM_JOB_ID
else
    name=$(date +%Y%m%d-%H%M%S)-$$
fi
again=1 base=$out/$name
while compgen -G "$base.*" >/dev/null; do base=$out/$name-$((++again)); done # a requeued job

# ---- collect ------------------------------------------------------------------------------
ranks=${RANKS:-${SLURM_NTASKS:-2}}
profile=("$nsys" profile --trace=cuda,nvtx,mpi,osrt --mpi-impl="$impl" --sample=none --cpuctxsw=none)
case " ${flags[*]} " in
    *" --time-first 0 "* | *" --time-first=0 "*) ;;
    *) # nsys begins to record where the trainer has timed its batches
        export NSYS_NVTX_PROFILER_REGISTER_ONLY=0
        profile+=(--capture-range=nvtx --nvtx-capture=capture@perfmodel --capture-range-end=none)
        ;;
esac
[ "${NSYS_MEMORY:-0}" != 1 ] || profile+=(--cuda-memory-usage=true)
launch=("$mpirun" "${options[@]}" -n "$ranks")
train=("$python" -m trainer "${flags[@]}")
limit=(timeout --kill-after=20 "${NSYS_TIMEOUT:-900}")
attempts=1 reports=1
if [ "${NSYS_PER_RANK:-0}" = 1 ]; then
    command=("${launch[@]}" "${profile[@]}" -o "$base.rank%q{$rank}" "${train[@]}")
    reports=$ranks attempts=3 # one run in fourteen loses the connection to nsys's agent, or hangs in MPI_Init
else
    command=("${profile[@]}" -o "$base" "${launch[@]}" "${train[@]}")
fi
whole() { # has every report that should be there been written?
    local found
    found=$(compgen -G "$base.*nsys-rep" | wc -l)
    [ "$found" = "$reports" ]
}
code=1
for ((attempt = 1; attempt <= attempts; attempt++)); do
    echo "nsys.sh: ${command[*]}"
    code=0
    "${limit[@]}" "${command[@]}" || code=$?
    if [ $code = 0 ] && whole; then break; fi
    # 2 to 7 and 143 are the trainer's own words: a second attempt would end the same
    case $code in [2-7] | 143) die "the trainer ended with code $code (its message is above)" ;; esac
    rm -f "$base".rank*.nsys-rep "$base".rank*.qdstrm
    [ $attempt = "$attempts" ] || echo "nsys.sh: attempt $attempt failed (code $code); again" >&2
done
[ $code = 0 ] && whole ||
    die "no report after $attempts attempt(s): code $code$([ $code != 124 ] || echo ' (timed out; NSYS_TIMEOUT)')"

# ---- export, and say what to do with it ----------------------------------------------------
# communicators and sizes of NCCL's collectives; Nsight Systems 2024.2 and older have no such flags
case $("$nsys" export --help 2>/dev/null || true) in
    *--include-json*) payloads=(--include-json true --include-blobs true) ;;
    *) payloads=() ;;
esac
exported=()
for report in "$base".*nsys-rep; do
    "$nsys" export -q true -t sqlite ${payloads[@]+"${payloads[@]}"} -o "${report%.nsys-rep}.sqlite" "$report" >/dev/null ||
        die "cannot export $report; try: $nsys export -t sqlite $report"
    exported+=("${report%.nsys-rep}.sqlite")
done
echo "nsys.sh: now run"
echo "perfmodel analyze ${exported[*]}"
