"""The kubelet's two gRPC interfaces, as far as they are used; `make protos` writes the modules anew."""
