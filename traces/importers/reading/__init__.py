"""Lines, JSON, parquet, pickles and texts of unknown files in bounded memory."""
