"""The outputs of a job in the launcher.

epoch_merge      the outputs of all workers in epoch order
writer           the destination of outputs
output_queue     outputs on their way to the writer
output_specs     the specifications of `--output`
several_outputs  many outputs as one
opened_output    the open file of an output, and its copy at a take-over
output_file      a file as an output, and the files that it protects
csv_file         a file of rows
program_output   outputs that the program itself reads
spark_results    `--output spark:…`
result_figures   the figures of a job for Spark's metrics
results_consumer who reads them in another program
results_log      the results that wait for Spark

A name below is loaded when it is first used, so a job without results for Spark does not load it. Its type is in
`__init__.pyi`.
"""

from megaflow.front_door import offer

_NAMES = {"megaflow.job.launcher.outputs.spark_results": ("open_results",)}  # module -> names that it offers

__getattr__, __dir__, __all__ = offer(globals(), _NAMES)
