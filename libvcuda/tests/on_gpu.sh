#!/bin/bash
# Builds everything on a machine with a real GPU and measures it there, in under six minutes, with the pages written by hand
# (no control plane). Usage: tests/on_gpu.sh RESULTS-DIRECTORY [PART...]. Parts: suite calls shares step memory torch.
# Prints what it writes.
set -u
cd "$(dirname "$0")/.." || exit 1
out=$(mkdir -p "$1" && cd "$1" && pwd)
exec > >(tee "$out/log.txt") 2>&1
shift
parts=" ${*:-suite calls shares step memory torch} "
# part NAME TITLE: is this part wanted? Then say its title and the time so far.
part() { [[ $parts == *" $1 "* ]] && printf '\n== %s (%s s)\n' "$2" "$SECONDS"; }

make -s -j"$(nproc)" || exit 1
gpu=$(nvidia-smi --query-gpu=uuid --format=csv,noheader | head -1)
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
work=$(mktemp -d)
claim=$work/claim
limit() { build/pagectl "$claim" set "$gpu" "$1" "$2"; }
under() { LD_PRELOAD=$PWD/build/libvcuda.so GPUCLOUD_CLAIM_DIR=$claim "$@"; }
gpu_time() { build/pagectl "$claim" show | sed -n 's/.*gpu_time_ns \([0-9]*\).*/\1/p'; }
build/pagectl "$claim" create

if part suite 'the tests of the simulated driver, on this GPU'; then
    timeout -k 5 100 build/tests/suite --real
fi

if part calls 'what a call costs: bare, unlimited claim, limited claim'; then
    limit none 100
    for round in 1 2 3; do
        printf 'bare      '; timeout -k 5 60 build/tests/bench_calls
        printf 'unlimited '; under timeout -k 5 60 build/tests/bench_calls
    done
    limit 8GiB 50
    printf 'limited   '; under timeout -k 5 60 build/tests/bench_calls
fi

# share LABEL COMMAND...: mean and deviation of gpuload's windows of half a second after the first; and the page's figure.
share() {
    local label=$1 before after begin
    shift
    before=$(gpu_time) begin=$(date +%s%N)
    "$@" --seconds 3.6 --interval 0.5 --json | python3 -c "
import json, statistics, sys
rows = [json.loads(line)['share_percent'] for line in sys.stdin][1:]
print(f'$label: {statistics.mean(rows):.2f} sd {statistics.pstdev(rows):.2f}', end='')"
    after=$(gpu_time)
    echo "; by the page over the whole run $(((after - before) * 1000 / ($(date +%s%N) - begin)))/1000"
}

if part shares 'shares of gpuload'; then
    for load in '--kernel-us 100' '--sync --kernel-us 100' '--kernel-us 5000' '--sync --kernel-us 5000'; do
        # shellcheck disable=SC2086
        share "bare $load" timeout -k 5 30 build/gpuload $load
        for core in 25 50 75; do
            limit 8GiB $core
            # shellcheck disable=SC2086
            share "$core % $load" under timeout -k 5 30 build/gpuload $load
        done
    done
fi

if part step 'a limit moved from 25 to 75 while it runs, in windows of 20 ms'; then
    limit 8GiB 25
    (sleep 2; limit 8GiB 75; sleep 1; limit 8GiB 25) &
    under timeout -k 5 30 build/gpuload --seconds 4 --kernel-us 500 --interval 0.02 --json |
        python3 -c "
import json, sys
for line in sys.stdin:
    row = json.loads(line)
    print(row['seconds'], row['share_percent'])" > "$out/step.txt"
    wait $!
    awk '{s[int($1 * 10)] += $2; n[int($1 * 10)]++}
         END {for (i = 14; i < 38; i++) if (n[i]) printf "%.1f:%.1f ", i / 10, s[i] / n[i]; print ""}' "$out/step.txt"
fi

if part memory 'memory: a limit of 4 GiB'; then
    limit 4GiB 100
    under timeout -k 5 60 build/gpuload --seconds 1.2 --interval 0.5 --kernel-us 0 --memory 2GiB --grow 2GiB --every 0.4
    for step in 2 64 500; do under timeout -k 5 60 python3 tests/torch_memory.py $step; done
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True under timeout -k 5 60 python3 tests/torch_memory.py 64
    PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync under timeout -k 5 60 python3 tests/torch_memory.py 64
    build/pagectl "$claim" show
fi

if part torch 'PyTorch matrix products: share of GPU time by the kernels own times'; then
    timeout -k 5 60 python3 tests/gemm_share.py 8192 3
    for core in 25 50 75; do
        limit none $core
        for size in 4096 8192; do
            under timeout -k 5 60 python3 tests/gemm_share.py $size 3 | sed "s/^/$core % /"
        done
    done
    limit none 50
    under timeout -k 5 60 python3 tests/gemm_share.py 4096 3 sync | sed 's/^/50 % sync /'
fi
printf '\n== end (%s s)\n' "$SECONDS"
rm -rf "$work"
