"""From losses and tokens to scores: a pure policy, the evaluation that feeds it, and the reports that hold it."""
