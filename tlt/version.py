"""The version of this tool, written here alone, so that a source tree that is not installed knows it."""

VERSION = "0.1.0"
