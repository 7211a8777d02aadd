"""How good the health detectors are: many seeded fleets with known faults, the real monitor, and two plain rules."""
