"""SharePods: KubeShare's objects, placed by our scheduler and run as pods of our device plugin."""
