"""Uses of the library that are no part of it, each a folder or a file that runs as it is."""
