"""Chaos on a real subnet: see ``scripts/soak``."""
