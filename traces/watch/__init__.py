"""A run that goes on, read again and again, and the doctor's checks on what is new in it."""
