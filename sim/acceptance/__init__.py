"""How many drafts the target accepts: of which position, which request, how far into its response; fitted."""
