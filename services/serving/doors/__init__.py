"""HTTP and gRPC: they translate, the front decides."""
