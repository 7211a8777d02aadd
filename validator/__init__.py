"""The validator: scores deltas, drives the merge round and pays. Imports only common."""
