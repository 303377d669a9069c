"""Values to bytes and back, equal in value and in type: `encode.encode`, `decode.decode`, `encode.register`.

The encoder first *lowers* a value to a tree that msgpack carries exactly. None, bool, int, float, str and bytes stand
for themselves. Every other value is a node, a list that begins with a tag (`tags`, `lowering`). One call packs the
tree. The decoder unpacks the tree and *restores* each node by its tag. `user_types` finds and fills the program's own
classes, and `array_types` handles the values of numpy and pandas. `equal_shapes` and `plain_columns` make columns.
`references` keeps an object one object although a value refers to it several times. `class_names` lists the classes in
a value. `old_classes` handles values whose class has changed since they were encoded.

Rules:
1. The codec distinguishes types by `type(value)`, never by isinstance: a subclass never turns into its base.
2. A list of only str, only int or only float travels as one run of bytes. Tuples or lists of one length, dicts with the
   same keys in the same order and objects of one class with the same fields travel as columns: their shape once, and
   one such list for each position, key or field. Lists of one type travel as their lengths and one list of all
   elements. No Python code runs per record. Values of different shapes travel one by one.
3. The decoder imports nothing and calls nothing that the bytes name. It looks a class up in `sys.modules`. The class
   must be a dataclass, NamedTuple, enum or one of the program's own whose objects are nothing but their fields. The
   decoder fills the object without running `__init__`. Classes of libraries travel only if the program registers them.
   The exception is megaflow's own records (`tags.RECORD_MODULES`): the decoder imports their modules, because the
   process that starts a job may never have used them.
4. For any bytes, decoding returns a value or raises ProtocolError. msgpack allocates a list as soon as it has read its
   length, so no array in the tree is longer than `tags.ARRAY_LENGTH_MAX`. The encoder cuts a longer list into parts.
5. If a value refers to an object several times, copies arrive. One object arrives only if both sides ask for that, as
   they do for the states of a bin, which the program continues to change. Otherwise the decoder refuses such
   references.
6. Columns make tuples, dicts and objects that cost their sender no byte. So columns are nested at most
   `tags.NESTED_COLUMNS_MAX` levels deep. Each level takes 50 to 200 bytes of memory for each received byte, or as much
   as objects of the class take.

A hostile peer that knows the secret can choose classes by name and fields by value. This limits the code that it can
run here:
 - It can run no constructor, setter or finalizer. `object.__new__` makes the object, slots and `__dict__` are written
   directly, and a class with a `__del__` is refused. It cannot make a Popen, nor any object of a library or of Python,
   because those classes are not in the program's modules (`user_types`, rules 1 to 4; the code that loads the program
   says which modules are).
 - The elements of its sets and the keys of its dicts are hashed and compared: by Python, or by `__hash__` and `__eq__`
   of a dataclass or of a class of the program, which the program runs on such keys anyway.
 - A flag asks its enum for a value that has no name, by `_missing_` if the enum has one.
 - The function that the program has registered for a class restores it, from fields that the peer has chosen.
 - `re` compiles a regular expression that is modest enough to take less than a second (`tags.is_modest`). The program
   must know whether it is quick to *match*, as with every value that it gets: the codec matches nothing.
 - It can send whatever the program itself could send and store. So a value may be wrong, but it has the type that it
   claims. Numbers are numbers: the decoder calls no `__index__` and no `__fspath__` of an object.
"""
