"""Object storage: the port, its S3 and in-memory adapters, byte transfers, the start-up probe, the embedded server."""
