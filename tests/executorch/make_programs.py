#!/usr/bin/env python3
"""Makes ExecuTorch programs of a tiny checkpoint (Llama architecture, safetensors in bf16), with the standard library alone.

    make_programs.py decoder   CHECKPOINT OUT.pte [--xnnpack] [--per-head-kv] [--int64-tokens] [--mask-rank 3] [--rows-in] [--kv-only] [--cut]
    make_programs.py embedding CHECKPOINT OUT.pte [--int64-tokens]
    make_programs.py evictor   CHECKPOINT OUT.pte [--sink 4] [--batch 16] [--per-head-kv]
    make_programs.py abort     CHECKPOINT OUT.pte

decoder:   kv_forward (1 row) and prefill_forward (8 rows) over a context of 64, all f32 on plain kernels: tokens, mask, positions,
           K caches [1, heads, dim, cache], V caches [1, heads, cache, dim] -> logits, new K, new V. Nothing of the interface has
           planned memory.
           --xnnpack       linear layers are XNNPACK delegates, one each
           --per-head-kv   one cache tensor a head, [1, dim, cache] and [1, cache, dim]
           --mask-rank 3   mask [1, rows, context] instead of [1, 1, rows, context]
           --rows-in       hidden states [1, rows, width] instead of tokens
           --kv-only       no prefill_forward
           --cut           llama::fallback.out between layers, where exporters cut large programs into several contexts
embedding: tok_embedding_kv_forward and tok_embedding_prefill_forward.
evictor:   the same methods over the caches alone: the first `sink` entries stay, the `batch` entries behind them go, what
           follows moves up with K turned back by `batch` positions, and zeros fill the end.
abort:     `forward`, whose one kernel does not like its arguments so much that it ends the process; and `double`, which works.
"""
import argparse
import json
import math
import pathlib
import struct

from pte import Method, Program, elements, xnnpack_linear

CONTEXT = 64
ROWS = {"kv_forward": 1, "prefill_forward": 8}


class Checkpoint:
    def __init__(self, folder):
        folder = pathlib.Path(folder)
        self.config = json.loads((folder / "config.json").read_text())
        data = (folder / "model.safetensors").read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        self.tensors = json.loads(data[8:8 + length])
        self.data = data[8 + length:]
        self.layers = self.config["num_hidden_layers"]
        self.width = self.config["hidden_size"]
        self.heads = self.config["num_attention_heads"]
        self.kv_heads = self.config["num_key_value_heads"]
        self.dim = self.config.get("head_dim", self.width // self.heads)
        self.vocabulary = self.config["vocab_size"]

    def weight(self, name):
        """(shape, bytes as f32)"""
        entry = self.tensors[name]
        assert entry["dtype"] == "BF16", name
        first, last = entry["data_offsets"]
        # bf16 is the upper half of f32.
        halves = self.data[first:last]
        full = bytearray(2 * len(halves))
        full[2::4], full[3::4] = halves[0::2], halves[1::2]
        return entry["shape"], bytes(full)

    def frequencies(self):
        base = float(self.config["rope_theta"])
        return [base ** (-2.0 * i / self.dim) for i in range(self.dim // 2)]


def floats(values):
    return struct.pack("<%df" % len(values), *values)


class Builder(Method):
    """Operators by their usual names; every result gets memory of its own."""

    def op(self, operator, arguments, shape, dtype="f32", out=None):
        if out is None:
            out = self.tensor(dtype, shape, planned=True)
        return self.call(operator, arguments, out)

    def result(self, dtype, shape):
        """An output of the method, whose memory the caller brings."""
        self.outputs.append(self.tensor(dtype, shape))
        return self.outputs[-1]

    def view(self, x, shape, out=None):
        assert elements(shape) == elements(self.shapes[x])
        return self.op("aten::view_copy.out", [x, self.int_list(shape)], shape, out=out)

    def permute(self, x, order, out=None):
        shape = [self.shapes[x][axis] for axis in order]
        return self.op("aten::permute_copy.out", [x, self.int_list(order)], shape, out=out)

    def slice(self, x, axis, first, last):
        shape = list(self.shapes[x])
        shape[axis] = last - first
        numbers = [self.number(value) for value in (axis, first, last, 1)]
        return self.op("aten::slice_copy.Tensor_out", [x, *numbers], shape)

    def cat(self, tensors, axis, out=None):
        shape = list(self.shapes[tensors[0]])
        shape[axis] = sum(self.shapes[tensor][axis] for tensor in tensors)
        return self.op("aten::cat.out", [self.tensor_list(tensors), self.number(axis)], shape, out=out)

    def broadcast(self, a, b):
        left, right = self.shapes[a], self.shapes[b]
        rank = max(len(left), len(right))
        left, right = [1] * (rank - len(left)) + left, [1] * (rank - len(right)) + right
        return [max(pair) for pair in zip(left, right)]

    def multiply(self, a, b):
        return self.op("aten::mul.out", [a, b], self.broadcast(a, b))

    def scale(self, x, factor):
        return self.op("aten::mul.Scalar_out", [x, self.number(float(factor))], self.shapes[x])

    def add(self, a, b):
        return self.op("aten::add.out", [a, b, self.number(1)], self.broadcast(a, b))

    def unary(self, name, x):
        return self.op("aten::%s.out" % name, [x], self.shapes[x])

    def softmax(self, x):
        return self.op("aten::_softmax.out", [x, self.number(-1), self.number(False)], self.shapes[x])

    def batched_matmul(self, a, b):
        batch, rows, _ = self.shapes[a]
        return self.op("aten::bmm.out", [a, b], [batch, rows, self.shapes[b][2]])

    def embedding(self, table, ids, out=None):
        shape = self.shapes[ids] + [self.shapes[table][1]]
        return self.op("aten::embedding.out", [table, ids, self.number(-1), self.number(False), self.number(False)], shape, out=out)

    def rms_norm(self, x, weight, epsilon):
        mean_shape = self.shapes[x][:-1] + [1]
        mean = self.op("aten::mean.out", [self.multiply(x, x), self.int_list([-1]), self.number(True), self.null()], mean_shape)
        shifted = self.op("aten::add.Scalar_out", [mean, self.number(float(epsilon)), self.number(1)], mean_shape)
        return self.multiply(self.multiply(x, self.unary("rsqrt", shifted)), self.constant(weight))

    def rotate(self, x, cos, sin, axis):
        """Rotary embedding of half-split pairs along `axis`."""
        half = self.shapes[x][axis] // 2
        turned = self.cat([self.unary("neg", self.slice(x, axis, half, 2 * half)), self.slice(x, axis, 0, half)], axis)
        return self.add(self.multiply(x, cos), self.multiply(turned, sin))


class DecoderMaker:
    def __init__(self, checkpoint, options):
        assert checkpoint.config["tie_word_embeddings"]
        self.checkpoint, self.options = checkpoint, options
        self.program = Program()
        self.linears = {}
        for name in checkpoint.tensors:
            if name == "__metadata__":
                continue
            shape, data = checkpoint.weight(name)
            if options.xnnpack and name.endswith("_proj.weight"):
                self.program.named[name] = data
                self.linears[name] = shape
            else:
                self.program.add_constant(name, "f32", shape, data)
        angles = [[position * f for f in checkpoint.frequencies()] * 2 for position in range(CONTEXT)]
        for name, function in (("cos", math.cos), ("sin", math.sin)):
            table = floats([function(angle) for row in angles for angle in row])
            self.program.add_constant(name, "f32", [CONTEXT, checkpoint.dim], table)

    def make(self):
        for name, rows in ROWS.items():
            if not (self.options.kv_only and name != "kv_forward"):
                self.add_method(name, rows)
        model = self.checkpoint
        for name, value in (("get_ar_len", 1), ("get_bos_id", 1), ("get_eos_id", 2), ("get_dim", model.width),
                            ("get_head_dim", model.dim), ("get_max_batch_size", 1), ("get_max_seq_len", CONTEXT),
                            ("get_max_context_len", CONTEXT), ("get_n_bos", 1), ("get_n_eos", 1),
                            ("get_n_kv_heads", model.kv_heads), ("get_n_layers", model.layers),
                            ("get_vocab_size", model.vocabulary), ("get_use_kv_cache", True), ("get_kv_io_bit_width", 32)):
            self.program.add_constant_method(name, value)
        return self.program

    def linear(self, method, x, name):
        if name in self.linears:
            width, _ = self.linears[name]
            shape = method.shapes[x]
            out = method.tensor("f32", shape[:-1] + [width], planned=True)
            method.delegate("XnnpackBackend", self.program.add_blob(xnnpack_linear(shape, width, name)), [x, out])
            return out
        weight = method.constant(name)
        return method.op("aten::linear.out", [x, weight, method.null()], method.shapes[x][:-1] + [method.shapes[weight][0]])

    def cache_inputs(self, method, shape):
        """The caches of all layers: [per layer] of one tensor or of one a head."""
        count = self.checkpoint.kv_heads if self.options.per_head_kv else 1
        heads = [] if self.options.per_head_kv else [self.checkpoint.kv_heads]
        return [[method.input("f32", [1] + heads + shape) for _ in range(count)] for _ in range(self.checkpoint.layers)]

    def whole_cache(self, method, tensors):
        """[1, heads, …] of the caches of one layer."""
        if not self.options.per_head_kv:
            return tensors[0]
        return method.cat([method.view(tensor, [1] + method.shapes[tensor]) for tensor in tensors], 1)

    def add_method(self, name, rows):
        model, method = self.checkpoint, Builder(self.program, name)
        cache = CONTEXT - rows
        if self.options.rows_in:
            x = method.input("f32", [1, rows, model.width])
        else:
            tokens = method.input("i64" if self.options.int64_tokens else "i32", [1, rows])
        mask = method.input("f32", [1, rows, CONTEXT] if self.options.mask_rank == 3 else [1, 1, rows, CONTEXT])
        positions = method.input("i32", [1, rows])
        keys = self.cache_inputs(method, [model.dim, cache])
        values = self.cache_inputs(method, [cache, model.dim])
        if not self.options.rows_in:
            x = method.embedding(method.constant("model.embed_tokens.weight"), tokens)
        mask = method.view(mask, [1, 1, rows, CONTEXT])
        turns = [method.view(method.embedding(method.constant(table), positions), [1, 1, rows, model.dim])
                 for table in ("cos", "sin")]
        new = []
        epsilon = model.config["rms_norm_eps"]
        for layer in range(model.layers):
            prefix = "model.layers.%d." % layer
            normed = method.rms_norm(x, prefix + "input_layernorm.weight", epsilon)
            caches = self.whole_cache(method, keys[layer]), self.whole_cache(method, values[layer])
            attended, pair = self.attention(method, normed, prefix + "self_attn.", mask, turns, caches)
            new.append(pair)
            x = method.add(x, attended)
            normed = method.rms_norm(x, prefix + "post_attention_layernorm.weight", epsilon)
            x = method.add(x, self.feed_forward(method, normed, prefix + "mlp."))
            if self.options.cut:
                x = method.op("llama::fallback.out", [x], method.shapes[x])
        x = method.rms_norm(x, "model.norm.weight", epsilon)
        logits = method.result("f32", [1, rows, model.vocabulary])
        method.call("aten::linear.out", [x, method.constant("model.embed_tokens.weight"), method.null()], logits)
        for part in (0, 1):
            for pair in new:
                self.cache_outputs(method, pair[part])

    def attention(self, method, x, prefix, mask, turns, caches):
        model, rows = self.checkpoint, method.shapes[x][1]
        group = model.heads // model.kv_heads

        def heads(name, count):
            flat = self.linear(method, x, prefix + name)
            return method.permute(method.view(flat, [1, rows, count, model.dim]), [0, 2, 1, 3])

        query = method.rotate(heads("q_proj.weight", model.heads), *turns, axis=3)
        key = method.permute(method.rotate(heads("k_proj.weight", model.kv_heads), *turns, axis=3), [0, 1, 3, 2])
        value = heads("v_proj.weight", model.kv_heads)
        all_keys = method.view(method.cat([caches[0], key], 3), [model.kv_heads, model.dim, CONTEXT])
        all_values = method.view(method.cat([caches[1], value], 2), [model.kv_heads, CONTEXT, model.dim])
        # Query heads that share a key head become rows of one matrix.
        query = method.view(query, [model.kv_heads, group * rows, model.dim])
        scores = method.scale(method.batched_matmul(query, all_keys), 1.0 / math.sqrt(model.dim))
        scores = method.add(method.view(scores, [1, model.heads, rows, CONTEXT]), mask)
        weights = method.view(method.softmax(scores), [model.kv_heads, group * rows, CONTEXT])
        mixed = method.view(method.batched_matmul(weights, all_values), [1, model.heads, rows, model.dim])
        mixed = method.view(method.permute(mixed, [0, 2, 1, 3]), [1, rows, model.heads * model.dim])
        return self.linear(method, mixed, prefix + "o_proj.weight"), (key, value)

    def feed_forward(self, method, x, prefix):
        gate = self.linear(method, x, prefix + "gate_proj.weight")
        gate = method.multiply(gate, method.unary("sigmoid", gate))
        return self.linear(method, method.multiply(gate, self.linear(method, x, prefix + "up_proj.weight")), prefix + "down_proj.weight")

    def cache_outputs(self, method, tensor):
        shape = method.shapes[tensor]
        if not self.options.per_head_kv:
            method.view(tensor, shape, out=method.result("f32", shape))
            return
        for head in range(shape[1]):
            one = [1] + shape[2:]
            method.view(method.slice(tensor, 1, head, head + 1), one, out=method.result("f32", one))


def make_embedding(checkpoint, options):
    program = Program()
    table = "model.embed_tokens.weight"
    program.add_constant(table, "f32", *checkpoint.weight(table))
    for name, rows in ROWS.items():
        method = Builder(program, "tok_embedding_" + name)
        tokens = method.input("i64" if options.int64_tokens else "i32", [1, rows])
        method.embedding(method.constant(table), tokens, out=method.result("f32", [1, rows, checkpoint.width]))
    return program


def make_evictor(checkpoint, options):
    program = Program()
    angles = [-options.batch * f for f in checkpoint.frequencies()] * 2
    per_head = options.per_head_kv
    turn_shape = [1] * (1 if per_head else 2) + [checkpoint.dim, 1]
    program.add_constant("cos", "f32", turn_shape, floats([math.cos(angle) for angle in angles]))
    program.add_constant("sin", "f32", turn_shape, floats([math.sin(angle) for angle in angles]))
    heads = [] if per_head else [checkpoint.kv_heads]
    count = checkpoint.layers * (checkpoint.kv_heads if per_head else 1)
    for name, rows in ROWS.items():
        method = Builder(program, name)
        cache = CONTEXT - rows
        caches = [method.input("f32", [1] + heads + [checkpoint.dim, cache]) for _ in range(count)]
        caches += [method.input("f32", [1] + heads + [cache, checkpoint.dim]) for _ in range(count)]
        axis = len(heads) + 1
        for index, tensor in enumerate(caches):
            is_key = index < count
            position_axis = axis + 1 if is_key else axis
            # Copies first: outputs may lie where the inputs are.
            kept = method.slice(tensor, position_axis, 0, options.sink)
            moved = method.slice(tensor, position_axis, options.sink + options.batch, cache)
            if is_key:
                moved = method.rotate(moved, method.constant("cos"), method.constant("sin"), axis)
            shape = list(method.shapes[tensor])
            shape[position_axis] = options.batch
            zeros_name = "zeros " + "x".join(map(str, shape))
            if zeros_name not in program.constants:
                program.add_constant(zeros_name, "f32", shape, bytes(4 * elements(shape)))
            out = method.result("f32", method.shapes[tensor])
            method.cat([kept, moved, method.constant(zeros_name)], position_axis, out=out)
    for name, value in (("get_eviction_batch_size", options.batch), ("get_max_context_len", CONTEXT), ("get_sink_size", options.sink)):
        program.add_constant_method(name, value)
    return program


def make_abort():
    program = Program()
    broken = Builder(program, "forward")
    x = broken.input("f32", [1, 4])
    i32 = 3
    # The output's type is not the one that is asked for.
    arguments = [x, broken.number(1.0)] + [broken.number(value) for value in (0, 0, 255, i32)]
    broken.call("quantized_decomposed::quantize_per_tensor.out", arguments, broken.result("u8", [1, 4]))
    fine = Builder(program, "double")
    x = fine.input("f32", [1, 4])
    fine.call("aten::add.out", [x, x, fine.number(1)], fine.result("f32", [1, 4]))
    return program


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["decoder", "embedding", "evictor", "abort"])
    parser.add_argument("checkpoint")
    parser.add_argument("out")
    for flag in ("xnnpack", "per-head-kv", "int64-tokens", "rows-in", "kv-only", "cut"):
        parser.add_argument("--" + flag, action="store_true")
    parser.add_argument("--mask-rank", type=int, choices=[3, 4], default=4)
    parser.add_argument("--sink", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()
    checkpoint = Checkpoint(options.checkpoint)
    if options.kind == "decoder":
        program = DecoderMaker(checkpoint, options).make()
    elif options.kind == "embedding":
        program = make_embedding(checkpoint, options)
    elif options.kind == "evictor":
        program = make_evictor(checkpoint, options)
    else:
        program = make_abort()
    pathlib.Path(options.out).write_bytes(program.serialize())


if __name__ == "__main__":
    main()
