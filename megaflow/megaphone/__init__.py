"""Megaphone: state in bins, and the operators F and S that move them between workers while records flow."""
