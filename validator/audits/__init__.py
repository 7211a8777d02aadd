"""What followers hold against leaders: how it is found, kept, told, and checked again by anybody."""
