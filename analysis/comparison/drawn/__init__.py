"""The pictures of a comparison: workers over time, GPU time by cause, running requests, lengths, gains."""
