#!/bin/sh
# The agent of a cluster's node. Its one-time token is a key of the Secret gpucloud-enrol, under the node's name; once it
# is enrolled its own identity lies in the state directory and the token is worth nothing.
set -eu
token=/etc/gpucloud/enrol/$GPUCLOUD_KUBERNETES_NODE
if [ -r "$token" ]; then
    GPUCLOUD_ENROL_TOKEN=$(cat "$token")
    export GPUCLOUD_ENROL_TOKEN
fi
exec python -m agent run
