"""The miner: trains on one machine and sends compressed deltas. Imports only common."""
