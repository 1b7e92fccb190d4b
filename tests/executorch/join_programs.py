#!/usr/bin/env python3
"""Joins methods of several ExecuTorch programs in one, and adds constants, with the standard library alone.

    join_programs.py OUT.pte IN.pte:METHOD... NAME=NUMBER...

METHOD `*` stands for all methods of a program. Made for programs whose methods are delegate calls: constant tensors and named
data are not taken along. A number with a point or an exponent is a real one.
"""
import struct
import sys

from pte import Nodes, Numbers, Program, Table, Text

# Fields of the tables of schema/program.fbs: a struct format, a format with * for a vector, "text", a table, or [table].
LISTS = {0: "i*"}
TENSOR = {0: "b", 1: "i", 2: "i*", 3: "B*", 4: "B", 5: "I", 6: {0: "I", 1: "I", 2: "I"}, 7: "b", 8: "b"}
VALUES = {1: {}, 2: {0: "q"}, 3: {0: "B"}, 4: {0: "d"}, 5: TENSOR, 6: {0: "text"}, 7: {0: "q*"}, 8: {0: "d*"}, 9: {0: "B*"},
          10: LISTS, 11: LISTS}
INSTRUCTIONS = {1: {0: "i", 1: "i*"}, 2: {0: "i", 1: "i*"}, 3: {0: "i", 1: "i"}, 4: {0: "i", 1: "i"}, 5: {0: "i"}}
CHAIN = {0: "i*", 1: "i*", 2: [{"union": INSTRUCTIONS}]}
DELEGATE = {0: "text", 1: {0: "b", 1: "I"}, 2: [{0: "text", 1: "B*"}]}
PLAN = {0: "text", 2: [{"union": VALUES}], 3: "i*", 4: "i*", 5: [CHAIN], 6: [{0: "text", 1: "text"}], 7: [DELEGATE], 8: "q*"}


class Reader:
    def __init__(self, path):
        with open(path, "rb") as file:
            self.file = file.read()
        self.root = self.number("I", 0)
        self.base = self.number("Q", 24)

    def number(self, code, at):
        return struct.unpack_from("<" + code, self.file, at)[0]

    def field(self, table, number):
        """Where a field is, or None."""
        vtable = table - self.number("i", table)
        if 4 + 2 * number >= self.number("H", vtable):
            return None
        offset = self.number("H", vtable + 4 + 2 * number)
        return table + offset if offset else None

    def follow(self, at):
        return at + self.number("I", at)

    def elements(self, table, number):
        """Tables of a vector."""
        at = self.field(table, number)
        if at is None:
            return []
        vector = self.follow(at)
        return [self.follow(vector + 4 + 4 * i) for i in range(self.number("I", vector))]

    def text(self, at):
        start = self.follow(at)
        return self.file[start + 4:start + 4 + self.number("I", start)].decode()

    def copy(self, table, schema):
        """A table as the serializer takes it."""
        if "union" in schema:
            kind = self.number("B", self.field(table, 0))
            body = self.copy(self.follow(self.field(table, 1)), schema["union"][kind])
            return Table({0: ("B", kind), 1: body})
        fields = {}
        for number, kind in schema.items():
            at = self.field(table, number)
            if at is None:
                continue
            if isinstance(kind, dict):
                fields[number] = self.copy(self.follow(at), kind)
            elif isinstance(kind, list):
                fields[number] = Nodes([self.copy(element, kind[0]) for element in self.elements(table, number)])
            elif kind == "text":
                fields[number] = Text(self.text(at))
            elif kind.endswith("*"):
                vector = self.follow(at)
                count = self.number("I", vector)
                values = list(struct.unpack_from("<%d%s" % (count, kind[0]), self.file, vector + 4))
                fields[number] = Numbers(kind[0], values, struct.calcsize(kind[0]))
            else:
                fields[number] = (kind, self.number(kind, at))
        return Table(fields)

    def segment(self, index):
        table = self.elements(self.root, 4)[index]
        start = self.base + (self.number("Q", self.field(table, 0)) if self.field(table, 0) else 0)
        return self.file[start:start + self.number("Q", self.field(table, 1))]


class Copied:
    """A method of another program, in the place of a Method."""

    def __init__(self, program, reader, table, segments):
        self.plan_table = reader.copy(table, PLAN)
        for delegate in self.plan_table.fields[7].nodes:
            processed = delegate.fields[1].fields
            index = processed[1][1] if 1 in processed else 0
            if index not in segments:
                segments[index] = program.add_blob(reader.segment(index))
            processed[1] = ("I", segments[index])
        program.methods.append(self)

    def plan(self):
        return self.plan_table


def main():
    out, *words = sys.argv[1:]
    program, opened = Program(), {}
    for word in words:
        if "=" in word:
            name, number = word.split("=")
            program.add_constant_method(name, float(number) if "." in number or "e" in number else int(number))
            continue
        path, name = word.rsplit(":", 1)
        reader, segments = opened.setdefault(path, (Reader(path), {}))
        found = [table for table in reader.elements(reader.root, 1) if name in ("*", reader.text(reader.field(table, 0)))]
        assert found, "%s has no method %s" % (path, name)
        for table in found:
            Copied(program, reader, table, segments)
    with open(out, "wb") as file:
        file.write(program.serialize())


if __name__ == "__main__":
    main()
