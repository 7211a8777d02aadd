"""A run in virtual time: the real round core, merge, accounting and membership on simulated machines and links."""
