"""Step times of a live engine, measured in a resumable sweep."""
