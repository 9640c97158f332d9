"""`tlt watch`: a run that goes on, on a terminal, for scripts and in a browser."""
