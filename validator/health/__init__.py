"""Who is slow, in what, since when, and whose fault it is: evidence, own past, detectors, verdicts, actions. Pure.

Nothing here knows a clock, a network or a file: evidence of a round goes in, findings with reasons come out, and the
same code runs in a validator and in ``brigade simulate --health``.
"""
