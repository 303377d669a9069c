"""F: sends records to the owners of their bins, and takes out the bins that move.

router          the operator
splitting       its loops
control_stream  the numbered commands for stateful operators, from the point where they are validated
command_log     the same commands at the point where F reads them
bin_transfer    the pieces of bins under way, and the credit that bounds them
bootstrap       the routing state that a worker which has joined needs in order to route as all others do
introduction    how a worker that joins an engine program gets the routing state without a Bootstrap
"""
