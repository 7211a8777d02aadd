"""Training data: from text to token files with an index, and the sample streams drawn from them."""
