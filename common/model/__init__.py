"""The language model: layers, shards, the flat form of weights, snapshots and export."""
