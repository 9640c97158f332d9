"""What a file states beside lengths: how long its requests took, and how many drafts were accepted."""
