"""Logs that others wrote, one file a format; each comes back with the members of `trimtab.log.reader.Log`."""
