"""One module per group of calls; each registers its handlers with ``dispatch.call``."""
