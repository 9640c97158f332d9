"""What runs say: accounting of GPU time, figures with intervals, pictures and pages."""
