"""Helpers that several test areas share."""
