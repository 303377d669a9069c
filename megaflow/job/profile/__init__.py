"""`megaflow run --profile`: what a worker measures of itself, and the report of all."""
