"""`megaflow run --profile`: what a worker measures of itself, and the report of all.

worker_profile      measures one worker, in its process
ledger              the rows, and the clock that charges them
report              reads and sums up the folder, in the launcher
"""
