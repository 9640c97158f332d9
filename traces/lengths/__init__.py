"""Response lengths: their schema, files, fits, and what ships with the package."""
