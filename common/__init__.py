"""What miner and validator share: wire, storage, chain, model, codec and merge. Imports neither of them."""
