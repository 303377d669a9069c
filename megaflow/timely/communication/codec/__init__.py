"""Values to bytes and back, equal in value and in type: `encode.encode`, `decode.decode`, `encode.register`.

A value is first *lowered* to a tree that msgpack carries exactly: None, bool, int, float, str and bytes stand for
themselves, everything else is a node, a list that begins with a tag (`tags`). The tree is packed in one call. Decoding
unpacks the tree and *restores* each node by its tag; `user_types` finds and fills the program's own classes.

Rules:
1. Types are told apart by `type(value)`, never by isinstance: a subclass never turns into its base.
2. A list of str, int or float alone travels as one run of bytes, a list of tuples of one length as one such list per
   position (a column): no Python code runs per record.
3. The decoder imports nothing and calls nothing that the bytes name: a class is looked up in `sys.modules`, must be a
   dataclass, NamedTuple or enum, and is filled without running its `__init__`.
4. Whatever the bytes are, decoding returns a value or raises ProtocolError. msgpack allocates a list as soon as it has
   read its length, so no array in the tree is longer than `tags.ARRAY_LENGTH_MAX`; a longer list is cut into parts.
5. Objects that are shared within a value arrive as copies.
"""
