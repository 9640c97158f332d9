"""What to draft at which batch, how sure that is, and how much any schedule could gain."""
