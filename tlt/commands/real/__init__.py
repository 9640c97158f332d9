"""`tlt real`: what is done on a live engine, a file a command or a group of commands."""
