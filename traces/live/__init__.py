"""Run folders made of what the plugin wrote while somebody else's job ran."""
