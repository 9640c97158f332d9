"""What policies estimate with: acceptance, of all requests and of each alone, medians, ranges of batches."""
