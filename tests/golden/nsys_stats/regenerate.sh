#!/bin/sh
# Writes <report>.<statistic>.csv for every *.sqlite of a folder, with the real `nsys stats`.
#
#     NSYS=/path/to/nsys ./regenerate.sh REPORTS [OUTPUT]
#
# OUTPUT is this script's folder unless given. Nsight Systems 2024.2.3 wrote the files kept here.
# The blank line that ends its output is dropped; an empty output leaves no file.
set -eu
nsys=${NSYS:-nsys}
reports=${1:?folder of reports wanted}
output=${2:-$(dirname "$0")}

copies=$(mktemp -d)
trap 'rm -rf "$copies"' EXIT
for report in "$reports"/*.sqlite; do
    name=$(basename "$report" .sqlite)
    copy=$copies/$name.sqlite
    cp "$report" "$copy"
    chmod u+w "$copy"
    for statistic in nvtx_gpu_proj_sum nvtx_pushpop_sum cuda_gpu_kern_sum cuda_gpu_mem_time_sum \
        cuda_gpu_mem_size_sum cuda_api_sum mpi_event_sum; do
        csv=$output/$name.$statistic.csv
        "$nsys" stats -q --format csv --report "$statistic" "$copy" | sed '${/^$/d;}' >"$csv"
        [ -s "$csv" ] || rm "$csv"
    done
    rm "$copy"
done
