"""The kubelet's two gRPC interfaces, as far as they are used; `make protos` regenerates the modules."""
