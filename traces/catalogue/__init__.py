"""Models and GPUs, shipped or own: shapes from published configurations, figures from data sheets."""
