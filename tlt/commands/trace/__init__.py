"""`tlt trace`: what is done with lengths and with the files of others."""
