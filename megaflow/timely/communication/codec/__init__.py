"""Values to bytes and back, equal in value and in type: `encode.encode`, `decode.decode`, `encode.register`.

A value is first *lowered* to a tree that msgpack carries exactly: None, bool, int, float, str and bytes stand for
themselves, everything else is a node, a list that begins with a tag (`tags`, `lowering`). The tree is packed in one
call. Decoding unpacks the tree and *restores* each node by its tag. `user_types` finds and fills the program's own
classes, `array_types` has the values of numpy and pandas, `equal_shapes` what travels as columns, `references` what is
one object though it is referred to several times, `class_names` tells which classes there are in a value.

A class may have changed since a value of it was encoded: `old_classes` says what comes of that.

Rules:
1. Types are told apart by `type(value)`, never by isinstance: a subclass never turns into its base.
2. A list of str, int or float alone travels as one run of bytes. Tuples or lists of one length, dicts with the same
   keys in the same order and objects of one class with the same fields travel as their shape, once, and one such list
   per position, key or field (a column); lists of one type travel as their lengths and one list of all. No Python code
   runs per record. What differs in shape travels one by one.
3. The decoder imports nothing and calls nothing that the bytes name: a class is looked up in `sys.modules`, must be a
   dataclass, NamedTuple, enum or one of the program's own whose objects are nothing but their fields, and is filled
   without running its `__init__`. Classes of libraries travel only if the program registers them.
4. Whatever the bytes are, decoding returns a value or raises ProtocolError. msgpack allocates a list as soon as it has
   read its length, so no array in the tree is longer than `tags.ARRAY_LENGTH_MAX`; a longer list is cut into parts.
5. An object that a value refers to several times arrives as copies, but as one where both sides ask for that: for the
   states of a bin, which the program goes on changing. The decoder takes no such reference from anybody else.
6. Columns make tuples, dicts and objects that cost their sender no byte. So columns are nested no deeper than
   `tags.NESTED_COLUMNS_MAX`: each level takes 50 to 200 bytes of memory for one that came, of objects what theirs take.

What a hostile peer, one that knows the secret, can have run here. It chooses classes by name and fields by value.
 - It has no constructor, setter or finalizer run: `object.__new__` makes the object, slots and `__dict__` are written
   directly, and a class with a `__del__` is refused. It cannot make a Popen, nor anything of a library or of Python:
   those are none of the program's modules (`user_types`, rules 1 to 4; whoever loads the program says which are).
 - What it puts into a set, or makes the key of a dict, is hashed and compared: by Python, or by `__hash__` and `__eq__`
   of a dataclass or of a class of the program, which the program runs on such keys anyway.
 - A flag asks its enum for a value that has no name: by `_missing_`, if the enum has one.
 - A registered class is restored by what the program has registered it with, on fields that the peer has chosen.
 - A regular expression is compiled by `re`, from so little that it takes less than a second (`tags.is_modest`).
   Whether it is quick to *match* is up to the program, as with every value that it gets: nothing is matched here.
 - It can make what the program itself could send and store, so a value may be wrong, but it is not of another type than
   it says. Numbers are numbers: no `__index__` and no `__fspath__` of an object is asked for.
"""
