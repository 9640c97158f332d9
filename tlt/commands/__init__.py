"""The commands of `tlt`, the only place that knows all packages; nothing here decides or computes."""
