"""What `megaflow run` does: files, sources, outputs, worker processes, jobs."""
