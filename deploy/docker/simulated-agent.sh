#!/bin/sh
# An agent with simulated GPUs. The seed service left its one-time token in the agent's own volume; once it is enrolled, its
# identity lies beside the token, which is then worth nothing.
set -eu
name=$1
state=/var/lib/gpucloud/nodes/$name
build=/srv/gpucloud/libvcuda/build

# The file is in the agent's volume, which outlives upgrades; the GPUs' UUIDs follow from the name.
"$build/simnode" create "$state/node.sim" --keep --name "$name" --gpus 4 --memory 24GiB
if [ -r "$state/enrol.token" ]; then
    GPUCLOUD_ENROL_TOKEN=$(cat "$state/enrol.token")
    export GPUCLOUD_ENROL_TOKEN
fi
export GPUCLOUD_RUN_DIR=/dev/shm/gpucloud GPUCLOUD_SIM_NODE="$state/node.sim" LD_LIBRARY_PATH="$build/sim"
exec python -m agent run --server "$GPUCLOUD_SERVER" --state-dir "$state"
