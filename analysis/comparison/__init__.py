"""Several policies on the same lengths: figures, verdict, pictures, page."""
