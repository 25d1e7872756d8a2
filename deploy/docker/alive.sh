#!/bin/sh
# Health check of a process that serves no port: fails if its loop has not moved for two minutes (gpucloud/heartbeat.py).
# It starts no Python, which would take longer on a busy machine than a check may.
test "$(find "$HEARTBEAT_PATH" -newermt '2 minutes ago')"
