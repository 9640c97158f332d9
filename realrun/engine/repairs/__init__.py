"""What vLLM needs repaired, one file a repair: each goes when a version of vLLM needs it no more."""
