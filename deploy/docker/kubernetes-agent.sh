#!/bin/sh
# The agent of a cluster's node. It joins by the cluster's word (GPUCLOUD_CLUSTER), unless the Secret gpucloud-enrol has a
# one-time token under the node's name; once it is enrolled its own identity lies in the state directory.
set -eu
token=/etc/gpucloud/enrol/$GPUCLOUD_KUBERNETES_NODE
if [ -r "$token" ]; then
    GPUCLOUD_ENROL_TOKEN=$(cat "$token")
    export GPUCLOUD_ENROL_TOKEN
fi
exec python -m agent run
