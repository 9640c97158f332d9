"""What policies estimate with: acceptance, medians, ranges of batches."""
