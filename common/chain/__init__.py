"""The chain as Brigade sees it: a port with our own types, adapters behind it, and a local node to run against."""
