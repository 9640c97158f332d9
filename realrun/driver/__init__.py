"""One policy on live workers: its plan, its clock, the cluster that drives it, the run folder it leaves."""
