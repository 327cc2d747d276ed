"""One file a host: each translates the host's moments into the verbs of a run and nothing else."""
