"""The library of operators: free functions from ports to ports."""
