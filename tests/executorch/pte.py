"""Writes ExecuTorch programs (.pte) with the standard library alone: a FlatBuffers serializer, methods made of kernel and
delegate calls, XNNPACK delegates, and the file around them.

Field numbers are those of ExecuTorch's schema/program.fbs and of its XNNPACK schema.
"""
import struct

# ---------------------------------------------------------------------------------------------------------- FlatBuffers


class Table:
    """A table: field number -> (struct format of a number, value), or a node that is written behind it."""

    def __init__(self, fields):
        self.fields = {number: value for number, value in fields.items() if value is not None}


class Numbers:
    """A vector of numbers. Elements begin at a multiple of `align`."""

    def __init__(self, code, values, align=4):
        self.code, self.values, self.align = code, values, align


class Nodes:
    """A vector of tables or strings."""

    def __init__(self, nodes):
        self.nodes = nodes


class Text:
    def __init__(self, text):
        self.data = text.encode()


class Serializer:
    """Writes parents before children, so that every offset to a child is positive, as the format wants it."""

    def __init__(self, prefix):
        self.out = bytearray(prefix)

    def align(self, multiple, ahead=0):
        self.out += bytes(-(len(self.out) + ahead) % multiple)

    def link(self, at, node):
        """Writes a node and stores its distance at `at`."""
        struct.pack_into("<I", self.out, at, self.write(node) - at)

    def write(self, node):
        if isinstance(node, Table):
            return self.write_table(node)
        if isinstance(node, Nodes):
            return self.write_nodes(node.nodes)
        if isinstance(node, Text):
            self.align(4)
            start = len(self.out)
            self.out += struct.pack("<I", len(node.data)) + node.data + b"\0"
            return start
        self.align(max(4, struct.calcsize(node.code), node.align), ahead=4)
        start = len(self.out)
        self.out += struct.pack("<I", len(node.values))
        if node.code == "B":
            self.out += bytes(node.values)
        else:
            self.out += struct.pack("<%d%s" % (len(node.values), node.code), *node.values)
        return start

    def write_nodes(self, nodes):
        self.align(4)
        start = len(self.out)
        self.out += struct.pack("<I", len(nodes)) + bytes(4 * len(nodes))
        for index, node in enumerate(nodes):
            self.link(start + 4 + 4 * index, node)
        return start

    def write_table(self, table):
        sizes = {number: struct.calcsize(value[0]) if isinstance(value, tuple) else 4 for number, value in table.fields.items()}
        offsets, size = {}, 4
        for number in sorted(sizes, key=lambda n: -sizes[n]):
            size += -size % sizes[number]
            offsets[number] = size
            size += sizes[number]
        count = max(sizes, default=-1) + 1
        vtable = struct.pack("<HH", 4 + 2 * count, size)
        vtable += b"".join(struct.pack("<H", offsets.get(number, 0)) for number in range(count))
        self.align(8, ahead=len(vtable))
        self.out += vtable
        start = len(self.out)
        self.out += struct.pack("<i", len(vtable)) + bytes(size - 4)
        for number, value in table.fields.items():
            if isinstance(value, tuple):
                struct.pack_into("<" + value[0], self.out, start + offsets[number], value[1])
            else:
                self.link(start + offsets[number], value)
        return start


def flatbuffer(root, identifier=b""):
    serializer = Serializer(bytes(4) + identifier)
    struct.pack_into("<I", serializer.out, 0, serializer.write(root))
    return bytes(serializer.out)


# -------------------------------------------------------------------------------------------------------------- methods

SCALAR_TYPES = {"u8": 0, "i8": 1, "i32": 3, "i64": 4, "f32": 6, "u16": 27}
ELEMENT_SIZES = {"u8": 1, "i8": 1, "i32": 4, "i64": 8, "f32": 4, "u16": 2}
NULL, INT, BOOL, DOUBLE, TENSOR, STRING, INT_LIST = 1, 2, 3, 4, 5, 6, 7
TENSOR_LIST = 10


def elements(shape):
    product = 1
    for dim in shape:
        product *= dim
    return product


def union(kind, body):
    return {0: ("B", kind), 1: Table(body)}


class Method:
    """One method. Values are numbers, as in the file; `types` and `shapes` know the tensors among them."""

    def __init__(self, program, name):
        self.program, self.name = program, name
        self.values, self.inputs, self.outputs = [], [], []
        self.operators, self.delegates, self.instructions = [], [], []
        self.arena = 0
        self.shapes, self.types = {}, {}
        program.methods.append(self)

    def value(self, kind, body):
        self.values.append(Table(union(kind, body)))
        return len(self.values) - 1

    def null(self):
        return self.value(NULL, {})

    def number(self, value):
        if isinstance(value, bool):
            return self.value(BOOL, {0: ("B", int(value))})
        if isinstance(value, int):
            return self.value(INT, {0: ("q", value)})
        if isinstance(value, float):
            return self.value(DOUBLE, {0: ("d", value)})
        return self.value(STRING, {0: Text(value)})

    def int_list(self, items):
        return self.value(INT_LIST, {0: Numbers("q", [self.number(item) for item in items], 8)})

    def tensor_list(self, tensors):
        return self.value(TENSOR_LIST, {0: Numbers("i", tensors)})

    def tensor(self, dtype, shape, constant=0, planned=False):
        body = {0: ("b", SCALAR_TYPES[dtype]), 2: Numbers("i", shape), 3: Numbers("B", list(range(len(shape)))), 5: ("I", constant)}
        if planned:
            start = self.arena + -self.arena % 16
            self.arena = start + elements(shape) * ELEMENT_SIZES[dtype]
            body[6] = Table({0: ("I", 1), 1: ("I", start), 2: ("I", 0)})
        index = self.value(TENSOR, body)
        self.shapes[index], self.types[index] = list(shape), dtype
        return index

    def input(self, dtype, shape):
        self.inputs.append(self.tensor(dtype, shape))
        return self.inputs[-1]

    def constant(self, name):
        """A tensor of the program (Program.add_constant)."""
        index, dtype, shape = self.program.constants[name]
        return self.tensor(dtype, shape, constant=index)

    def call(self, operator, arguments, out):
        """A kernel call. `arguments` are values, in the order of the schema; `out` is the output, which comes once as the
        out argument and once as what is returned."""
        if operator not in self.operators:
            self.operators.append(operator)
        body = {0: ("i", self.operators.index(operator)), 1: Numbers("i", list(arguments) + [out, out])}
        self.instructions.append(Table(union(1, body)))
        return out

    def delegate(self, backend, segment, arguments):
        self.delegates.append(Table({0: Text(backend), 1: Table({0: ("b", 1), 1: ("I", segment)}), 2: Nodes([])}))
        body = {0: ("i", len(self.delegates) - 1), 1: Numbers("i", arguments)}
        self.instructions.append(Table(union(2, body)))

    def plan(self):
        names = [name.split(".", 1) for name in self.operators]
        chain = Table({0: Numbers("i", []), 1: Numbers("i", []), 2: Nodes(self.instructions)})
        return Table({
            0: Text(self.name),
            2: Nodes(self.values),
            3: Numbers("i", self.inputs),
            4: Numbers("i", self.outputs),
            5: Nodes([chain]),
            6: Nodes([Table({0: Text(name), 1: Text(overload)}) for name, overload in names]),
            7: Nodes(self.delegates),
            8: Numbers("q", [0, self.arena] if self.arena else [0], 8),
        })


# -------------------------------------------------------------------------------------------------------------- program


class Program:
    ALIGNMENT = 128

    def __init__(self):
        self.methods = []
        self.constants = {}      # name -> (buffer index, dtype, shape)
        self.constant_data = []
        self.blobs = []          # delegate data: segments 1, 2, …
        self.named = {}          # key -> bytes: segments behind those

    def add_constant(self, name, dtype, shape, data):
        assert len(data) == elements(shape) * ELEMENT_SIZES[dtype], name
        self.constant_data.append(data)
        self.constants[name] = (len(self.constant_data), dtype, list(shape))

    def add_blob(self, data):
        self.blobs.append(data)
        return len(self.blobs)

    def add_constant_method(self, name, *values):
        method = Method(self, name)
        method.outputs = [method.number(value) for value in values]

    def segments(self):
        """Constants, then delegate data, then named data; and where each constant begins in the first."""
        first, offsets = bytearray(), [0]  # buffer 0 means "no constant"
        for data in self.constant_data:
            first += bytes(-len(first) % 16)
            offsets.append(len(first))
            first += data
        return [bytes(first)] + self.blobs + list(self.named.values()), offsets

    def serialize(self):
        segments, offsets = self.segments()
        places, end = [], 0
        for data in segments:
            end += -end % self.ALIGNMENT
            places.append(end)
            end += len(data)
        named = [Table({0: Text(key), 1: ("I", 1 + len(self.blobs) + i)}) for i, key in enumerate(self.named)]
        root = Table({
            0: ("I", 0),
            1: Nodes([method.plan() for method in self.methods]),
            2: Nodes([]),
            3: Nodes([]),
            4: Nodes([Table({0: ("Q", place), 1: ("Q", len(data))}) for place, data in zip(places, segments)]),
            5: Table({0: ("I", 0), 1: Numbers("Q", offsets, 8)}),
            7: Nodes(named) if named else None,
        })
        serializer = Serializer(bytes(4) + b"ET12" + b"eh00" + bytes(28))
        struct.pack_into("<I", serializer.out, 0, serializer.write(root))
        file = serializer.out
        base = len(file) + -len(file) % self.ALIGNMENT
        struct.pack_into("<IQQQ", file, 12, 32, len(file), base, end)
        for place, data in zip(places, segments):
            file += bytes(base + place - len(file)) + data
        return bytes(file)


# -------------------------------------------------------------------------------------------------------------- XNNPACK

_NONE = 0xFFFFFFFF


def xnnpack_linear(shape, width, key):
    """A delegate that multiplies f32 rows (last dimension of `shape`) with the named data `key`, f32 [width, last]."""

    def tensor(dims, index, constant=0, external=_NONE, flags=0):
        body = {0: ("h", 1), 1: ("I", len(dims)), 2: Numbers("I", dims), 3: ("I", constant), 4: ("I", external),
                5: ("I", flags), 6: ("I", index), 7: ("h", 0)}
        return Table(union(1, body))

    values = [tensor(shape, 0, external=0, flags=1), tensor([width, shape[-1]], 1, constant=1),
              tensor(shape[:-1] + [width], 2, external=1, flags=2)]
    fully_connected = {0: ("I", 0), 1: ("I", 1), 2: ("I", _NONE), 3: ("I", 2), 4: ("I", 0)}
    node = Table({**union(2, fully_connected), 2: ("I", 1)})
    in_named_data = ("Q", 2**64 - 1)
    data = [Table({0: ("Q", 0), 1: ("Q", 0), 2: Text("")}),
            Table({0: in_named_data, 1: ("Q", 4 * width * shape[-1]), 2: Text(key)})]
    graph = bytearray(flatbuffer(Table({0: Text("0"), 1: Nodes([node]), 2: Nodes(values), 3: ("I", 2), 4: Numbers("I", [0]),
                                        5: Numbers("I", [2]), 8: Nodes(data)}), b"XN00"))
    graph += bytes(-len(graph) % 16)
    return struct.pack("<4x4sHIIIQ2x", b"XH00", 30, 32, len(graph), 32 + len(graph), 0) + bytes(graph)
