"""``brigade doctor``: what a machine is found to be, what a run asks of it, and whether the two fit."""
