"""`megaflow run --profile`: measurements of each worker, and the report on all of them.

worker_profile      measures a worker, in its process
ledger              the rows, and the clock that charges them
report              reads and sums up the folder, in the launcher
"""
