"""The program of a job on its way to the workers.

function_pickler  pickles the dataflow function
program_modules   the modules that belong to the program
source_bindings   the names that a module's file binds
reached_names     the names that the function uses in those modules
changed_modules   the variables that the program changed there since their import
unsendable        the variable that cannot be sent to the workers
typed_failure     the failure of a program, as an error of the class that it raised
"""
