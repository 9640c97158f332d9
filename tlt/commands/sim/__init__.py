"""`tlt sim`: what is asked of the model."""
