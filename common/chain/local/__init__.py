"""``brigade chain local``: a single-process chain node that the unmodified Bittensor SDK and btcli talk to.

The runtime metadata is the real one (spec 461); storage, calls, errors and events follow it. Consensus, fees, token
pools and the full Yuma epoch are not here: see ``epoch.py`` for what the first form computes.
"""
