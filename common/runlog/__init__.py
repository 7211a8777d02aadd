"""The run log: an append-only chain of signed entries in the bucket, the only source of truth."""
