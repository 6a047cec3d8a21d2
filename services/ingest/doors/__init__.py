"""HTTP and gRPC: they translate, the intake decides."""
