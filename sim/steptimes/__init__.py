"""What an engine step takes: the law, its fits and their errors, and the roofline for lack of both."""
