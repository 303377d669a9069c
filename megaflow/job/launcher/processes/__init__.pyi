"""The types of the names that this package loads on first use."""

from megaflow.job.launcher.processes.spark_provisioner import SparkProvisioner as SparkProvisioner
