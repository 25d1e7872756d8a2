"""Take-over of a shared cluster: its quotas and running pods, without restarting a pod."""
