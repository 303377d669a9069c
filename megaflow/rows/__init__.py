"""Rows of named, typed columns, as Spark has them. This package does not need Spark.

ddl           columns in Spark's DDL
packed_rows   rows packed column by column
kept_columns  the columns of rows in a store
row_values    the values of columns on their way from Spark and to it
result_rows   records of an output as rows
"""
