"""What this project claims, measured again: scripts, records and recorded runs. Not part of the library."""
