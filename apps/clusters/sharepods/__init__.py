"""SharePods: KubeShare's objects, placed by our core and run as pods that our device plugin knows."""
