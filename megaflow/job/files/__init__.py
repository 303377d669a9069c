"""Files as inputs: their splits, their positions, and the files that others still write.

splits            files as byte ranges
split_reader      reads a split
stream_reader     reads a split of a compressed file, or of one in UTF-16
followed_files    reads growing files, for `--follow`
growing_file      one of them: finds and opens it, and knows the place up to which it was read
file_descriptors  the descriptors of growing files, which may be few
file_position     the position in a growing file
rotated_copy      the rest of a file that was compressed and removed
"""
