"""The files of studies made from runs: one result a module, its structs and nothing that computes it."""
