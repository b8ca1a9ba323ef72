"""Lightning callbacks of a run, a file each: what is measured, saved, guarded and shown."""
