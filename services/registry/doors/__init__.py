"""HTTP and gRPC: they translate, the catalog decides."""
