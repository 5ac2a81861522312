#!/usr/bin/env bash
# Count what the trainer's kernels do with Nsight Compute (docs/counters.md):
#
#   sbatch ncu.sh                               one rank, three batches of the document's network
#   sbatch ncu.sh -- --math tf32                flags after -- go to python -m trainer
#   sbatch --ntasks=2 --gpus=2 ncu.sh           two ranks, of which rank 0 is counted
#   bash ncu.sh -- --gemm fused                 without Slurm
#
# Environment:
#   NCU_RANGE        count kernels inside this NVTX range (batch iteration); empty: all kernels
#   NCU_RANK         the rank that is counted; the others run along (0)
#   NCU_OUT          where reports and tables go (./ncu-reports)
#   NCU_TIMEOUT      seconds one attempt may take (900)
#   PERFMODEL_NCU    the ncu to use, if it is not on the PATH
#   PYTHON           the python to use (python3)
#   RANKS            how many ranks (Slurm's --ntasks, else 1)
#
#SBATCH --job-name=perfmodel-ncu
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --gpus=1
#SBATCH --time=00:15:00
#SBATCH --output=slurm-%j.out
set -euo pipefail

die() { echo "ncu.sh: $*" >&2; exit 1; }

case "${1:-}" in
    -h | --help) sed -n '2,/^#SBATCH/{/^#SBATCH/d;s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --) shift ;;
esac
# Three batches of images that stay on the GPU, no evaluation between them: every kernel is run
# again for every pass of the counters. A flag given twice counts as it was given last.
flags=(--epochs 1 --train-size 9000 --test-size 500 --evaluate-every 0 --data-on device "$@")

# Slurm runs a copy of this script from its spool directory; the trainer is where sbatch was called.
root=${SLURM_SUBMIT_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)}
[ -f "$root/trainer/__main__.py" ] ||
    die "expected trainer/ in $root; got none; call sbatch in the repository's root"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"

# ---- everything needed is there, or say what is not ----------------------------------
ncu=$(command -v "${PERFMODEL_NCU:-ncu}") ||
    die "expected ${PERFMODEL_NCU:-ncu}; got none; load its module (module load nsight-compute)" \
        "or set PERFMODEL_NCU=/path/to/ncu"
python=$(command -v "${PYTHON:-python3}") ||
    die "expected ${PYTHON:-python3}; got none; activate the environment or set PYTHON"
python=$("$python" -c 'import sys; print(sys.executable)')
ranks=${RANKS:-${SLURM_NTASKS:-1}} counted=${NCU_RANK:-0}
[[ $ranks =~ ^[1-9][0-9]*$ ]] || die "RANKS: expected a number of ranks; got '$ranks'"
[[ $counted =~ ^[0-9]+$ ]] && [ "$counted" -lt "$ranks" ] ||
    die "NCU_RANK: expected one of ranks 0 to $((ranks - 1)); got '$counted'"
"$python" -c 'import perfmodel.analysis.counters' ||
    die "expected perfmodel's packages in $python (above: what is missing);" \
        "run: $python -m pip install $root"
"$python" -c 'import nvtx' 2>/dev/null || [ -z "${NCU_RANGE-batch iteration}" ] ||
    die "expected the package nvtx in $python, without which there are no ranges;" \
        "run: $python -m pip install nvtx, or count all kernels: NCU_RANGE="
launch=() rank=PERFMODEL_RANK
if [ "$ranks" != 1 ]; then
    mpirun=$(command -v mpirun) ||
        die "expected mpirun; got none; load an MPI module, or install openmpi-bin"
    case $("$mpirun" --version 2>&1) in
        *"Open MPI"* | *OpenRTE*) rank=OMPI_COMM_WORLD_RANK launch=("$mpirun" --bind-to none) ;;
        *) rank=PMI_RANK launch=("$mpirun") ;;
    esac
    launch+=(-n "$ranks")
fi

# ---- a name that no other report has ----------------------------------------------------
out=${NCU_OUT:-$PWD/ncu-reports}
mkdir -p "$out" || die "cannot write reports to $out; set NCU_OUT"
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
# Kernels that wait for another GPU never end when they are run again: they are left out.
profile=("$ncu" --target-processes all --nvtx --clock-control none --force-overwrite -o "$base"
    --nvtx-exclude "ncclAllReduce/" --nvtx-exclude "peer all-reduce and step/")
[ -z "${NCU_RANGE-batch iteration}" ] || profile+=(--nvtx-include "${NCU_RANGE-batch iteration}/")
train=("$python" -m trainer "${flags[@]}")
# shellcheck disable=SC2016 # the rank's own shell looks at its rank
choose='rank=$1 counted=$2 words=$3; shift 3
    if [ "${!rank:-0}" = "$counted" ]; then exec "$@"; fi
    shift "$words"; exec "$@"'
metrics=$("$python" -c 'from perfmodel.analysis.counters import METRICS
from perfmodel.readers.ncu import DEVICE
print(",".join((*METRICS, DEVICE)))')
log=$base.log
while :; do # a GPU does not know all metrics: leave out what ncu names
    words=("${profile[@]}" --metrics "$metrics")
    command=("${launch[@]}" bash -c "$choose" ncu.sh "$rank" "$counted" "${#words[@]}" "${words[@]}" "${train[@]}")
    echo "ncu.sh: ${words[*]} ${train[*]}"
    code=0
    timeout --kill-after=20 "${NCU_TIMEOUT:-900}" "${command[@]}" 2>&1 | tee "$log" || code=$?
    [ $code != 0 ] || break
    unknown=$(tr ', ' '\n\n' <"$log" | grep -Fx -f <(tr , '\n' <<<"$metrics") | sort -u || true)
    grep -qi "failed to find metric" "$log" && [ -n "$unknown" ] || break
    fewer=$(tr , '\n' <<<"$metrics" | grep -Fvx -f <(echo "$unknown") | paste -sd, || true)
    [ -n "$fewer" ] || break
    echo "ncu.sh: this GPU does not know ${unknown//$'\n'/, }: left out" >&2
    metrics=$fewer
done
case $code in
    0) ;;
    124) die "timed out after ${NCU_TIMEOUT:-900} s; count fewer batches (-- --train-size 3000), or set NCU_TIMEOUT" ;;
    *)
        grep -q ERR_NVGPUCTRPERM "$log" &&
            die "this user may not read the GPU's counters (ERR_NVGPUCTRPERM); ask the administrator for" \
                "NVreg_RestrictProfilingToAdminUsers=0"
        die "ended with code $code (its message is above)"
        ;;
esac
[ -f "$base.ncu-rep" ] ||
    die "no report: no kernel was launched inside '${NCU_RANGE-batch iteration}'; check NCU_RANGE"

# ---- print the table, and say what to do with it ----------------------------------------
"$ncu" --import "$base.ncu-rep" --csv --page raw --print-units base >"$base.csv" ||
    die "cannot print $base.ncu-rep; try: $ncu --import $base.ncu-rep --csv --page raw"
echo "ncu.sh: now run"
echo "perfmodel counters $base.csv --by range"
