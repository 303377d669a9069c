"""What `megaflow run` is: a launcher and its worker processes."""
