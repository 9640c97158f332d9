"""Step times asked of other people's tables, in an environment of their own, and made a calibration."""
