"""The live engine under the same schedulers: measures what sim predicts, and leaves the same run folder."""
