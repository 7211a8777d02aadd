"""The round machine: pure, without clock, network or storage."""
