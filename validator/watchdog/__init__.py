"""The progress watchdog: what stands still, why, what it waits for, and what an operator can do about it."""
