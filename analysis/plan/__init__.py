"""A searched plan in words, tables and a picture."""
