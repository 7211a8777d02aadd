"""Delta codec: float32 vectors to bytes and back, bit for bit the same on every machine."""
