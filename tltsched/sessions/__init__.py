"""Sessions of several turns: where a turn goes, which tools run, who is away at one."""
