"""Merge mathematics: gates, mean, outer step, error feedback. Pure."""
