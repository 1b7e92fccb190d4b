//! A decoder without a network: its next token is a hash of what the row can see.
//!
//! Every KV element is a hash of layer, place, token and position. For each row the fake walks the columns its mask
//! lets it see, checks that K and V of each hold what was written for some token and position, that the positions run
//! without a gap up to the row's own, and hashes the tokens. A bug in masks, strides, commits or rewinds is therefore
//! an engine error or another text, never luck.

use etgenai::chat::{ChatTemplate, SpecialTokens, Tokenizer};
use etgenai::engine::{
    Constant, ConstantValue, Constants, ExecuteOptions, GraphSignature, LoadedComponent, check_call,
};
use etgenai::graph::{DType, TensorInfo, TensorView, TensorViewMut};
use etgenai::runner::{Event, Flow, Runner, RunnerParts};
use etgenai::{Error, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// Ids 0..=255 are bytes, then the control tokens.
pub const IM_START: u32 = 256;
pub const IM_END: u32 = 257;
/// Stands for a row of sound.
#[allow(dead_code, reason = "most tests are of text")]
pub const AUDIO: u32 = 258;
pub const VOCABULARY: usize = 259;

pub const LAYERS: usize = 2;
pub const HEADS: usize = 2;
const DIM: usize = 3;

/// What a fake is like.
#[derive(Clone)]
pub struct Shape {
    /// Block sizes, one graph each.
    pub blocks: Vec<usize>,
    pub context: usize,
    /// The second layer sees this many positions only, through a mask of its own.
    pub window: Option<usize>,
    pub kv: DType,
    pub mask: DType,
    pub tokens: DType,
    pub logits: DType,
    /// Graph names; by block size if empty.
    pub names: Vec<&'static str>,
    /// A cache tensor of its own for every head, as in older files.
    pub per_head: bool,
    /// Prefill and decode have encodings of their own, and the constants say so.
    pub two_encodings: bool,
    /// Masks `[1, AR, CL]`, as in older files.
    pub rank_three_mask: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            blocks: vec![1, 32],
            context: 256,
            window: None,
            kv: DType::F32,
            mask: DType::F32,
            tokens: DType::I32,
            logits: DType::F32,
            names: Vec::new(),
            per_head: false,
            two_encodings: false,
            rank_three_mask: false,
        }
    }
}

impl Shape {
    pub fn blocks(blocks: &[usize]) -> Self {
        Self { blocks: blocks.to_vec(), ..Self::default() }
    }
}

/// What a test can do to a running fake, and see of it.
#[derive(Default)]
pub struct Control {
    /// Tokens to come next, one for each row of logits asked for; hashes when it is empty.
    pub script: VecDeque<u32>,
    /// Fail when this many more calls have succeeded.
    pub fail_after: Option<usize>,
    /// Valid rows of each call so far.
    pub calls: Vec<usize>,
    /// Answer with NaN from now on.
    pub nan: bool,
    /// The next token follows from a row's own, instead of from all it sees.
    pub follow: Option<fn(u32) -> u32>,
}

pub type Shared = Arc<Mutex<Control>>;

pub struct FakeDecoder {
    graphs: Vec<GraphSignature>,
    shape: Shape,
    constants: Constants,
    control: Shared,
}

impl FakeDecoder {
    pub fn new(shape: &Shape) -> (Self, Shared) {
        let control = Shared::default();
        let names = |index: usize, ar: usize| match (shape.names.get(index), ar) {
            (Some(name), _) => (*name).to_owned(),
            (None, 1) => "kv_forward".into(),
            (None, ar) => format!("prefill_forward_{ar}"),
        };
        let graphs = shape.blocks.iter().enumerate();
        let graphs = graphs.map(|(index, &ar)| signature(shape, ar, names(index, ar))).collect();
        (Self { graphs, shape: shape.clone(), constants: constants(shape), control: control.clone() }, control)
    }
}

fn constants(shape: &Shape) -> Constants {
    let mut all = Vec::new();
    let mut add = |name: String, value| all.push(Constant { name, values: vec![value] });
    if let Some((scale, zero_point)) = logits_encoding(shape.logits) {
        add("get_logits_scale".into(), ConstantValue::Real(scale.into()));
        add("get_logits_zero_point".into(), ConstantValue::Integer(zero_point));
    }
    if shape.two_encodings {
        add("get_n_layers".into(), ConstantValue::Integer(LAYERS as i64));
        for (layer, kind, side) in
            (0..LAYERS).flat_map(|l| ["k", "v"].into_iter().flat_map(move |k| ["output", "input"].map(|s| (l, k, s))))
        {
            let encoding = Encoding::of(shape, side == "output");
            add(format!("get_{kind}_scale_{side}_{layer}"), ConstantValue::Real(encoding.scale));
            add(format!("get_{kind}_zero_point_{side}_{layer}"), ConstantValue::Integer(encoding.zero_point));
        }
    }
    Constants::new(all)
}

/// Scale and zero point of quantized logits.
fn logits_encoding(dtype: DType) -> Option<(f32, i64)> {
    match dtype {
        DType::U16 => Some((1.0 / 16384.0, 1000)),
        DType::U8 => Some((1.0 / 64.0, 10)),
        _ => None,
    }
}

/// How KV elements, whole numbers below 251, are written.
#[derive(Clone, Copy)]
pub struct Encoding {
    scale: f64,
    zero_point: i64,
}

impl Encoding {
    /// Encodings that hold every element exactly, so that converted caches can be checked.
    pub fn of(shape: &Shape, prefill: bool) -> Self {
        match (shape.two_encodings && !prefill, shape.kv) {
            (false, _) => Self { scale: 1.0, zero_point: 0 },
            (true, DType::U16) => Self { scale: 0.5, zero_point: 100 },
            (true, _) => Self { scale: 1.0, zero_point: 5 },
        }
    }

    pub fn level(self, element: u64) -> u64 {
        (element as f64 / self.scale) as u64 + self.zero_point as u64
    }

    /// What no element gives is corrupt, and fits nothing.
    pub fn element(self, level: u64) -> u64 {
        let element = (level as f64 - self.zero_point as f64) * self.scale;
        if element >= 0.0 { element as u64 } else { u64::MAX }
    }
}

fn signature(shape: &Shape, ar: usize, name: String) -> GraphSignature {
    let info = |name: String, dtype, shape: &[usize]| TensorInfo { name, dtype, shape: shape.to_vec() };
    let slots = shape.context - ar;
    let mask: &[usize] = if shape.rank_three_mask { &[1, ar, shape.context] } else { &[1, 1, ar, shape.context] };
    let mut inputs =
        vec![info("tokens".into(), shape.tokens, &[1, ar]), info("attention_mask".into(), shape.mask, mask)];
    if shape.window.is_some() {
        inputs.push(info("window_mask".into(), shape.mask, mask));
    }
    let caches = |kind: &str, a: usize, b: usize| -> Vec<TensorInfo> {
        let layers = 0..LAYERS;
        if shape.per_head {
            let heads = layers.flat_map(|layer| (0..HEADS).map(move |head| (layer, head)));
            return heads.map(|(l, h)| info(format!("{kind}_{l}_{h}"), shape.kv, &[1, a, b])).collect();
        }
        layers.map(|layer| info(format!("{kind}_{layer}"), shape.kv, &[1, HEADS, a, b])).collect()
    };
    if slots > 0 {
        inputs.push(info("input_pos".into(), DType::I32, &[1, ar]));
        inputs.extend(caches("k_cache", DIM, slots));
        inputs.extend(caches("v_cache", slots, DIM));
    }
    let mut outputs = vec![info("logits".into(), shape.logits, &[1, ar, VOCABULARY])];
    outputs.extend(caches("k_out", DIM, ar));
    outputs.extend(caches("v_out", ar, DIM));
    GraphSignature { name, inputs, outputs }
}

fn hash(values: &[u64]) -> u64 {
    values.iter().fold(0xcbf2_9ce4_8422_2325, |h, v| (h ^ v).wrapping_mul(0x0100_0000_01b3).rotate_left(23))
}

/// KV element `place` of K (0) or V (1): the first two tell token and position, the third checks them.
pub fn element(layer: usize, kind: usize, head: usize, place: usize, token: u64, position: u64) -> u64 {
    match place {
        0 => token % 251,
        1 => position % 251,
        _ => hash(&[layer as u64, kind as u64, head as u64, token, position]) % 251,
    }
}

pub fn read(view: &TensorView<'_>, index: usize) -> u64 {
    match view.dtype {
        DType::F32 => view.as_slice::<f32>().unwrap()[index] as u64,
        DType::U16 => view.as_slice::<u16>().unwrap()[index].into(),
        _ => view.bytes[index].into(),
    }
}

pub fn write(view: &mut TensorViewMut<'_>, index: usize, value: u64) {
    match view.dtype {
        DType::F32 => view.as_mut_slice::<f32>().unwrap()[index] = value as f32,
        DType::U16 => view.as_mut_slice::<u16>().unwrap()[index] = value as u16,
        _ => view.bytes[index] = value as u8,
    }
}

fn attends(mask: &TensorView<'_>, index: usize) -> Result<bool> {
    let (attend, masked) = match mask.dtype {
        DType::F32 => (mask.as_slice::<f32>()?[index] == 0.0, mask.as_slice::<f32>()?[index] == -65535.0),
        DType::U16 => (mask.as_slice::<u16>()?[index] == 65535, mask.as_slice::<u16>()?[index] == 0),
        _ => (mask.bytes[index] == 255, mask.bytes[index] == 0),
    };
    if attend == masked { Err(broken(format!("illegal mask level at {index}"))) } else { Ok(attend) }
}

fn broken(reason: String) -> Error {
    Error::Engine { engine: "fake".into(), reason }
}

/// One call, taken apart.
struct Call<'a> {
    ar: usize,
    slots: usize,
    tokens: Vec<u64>,
    positions: Vec<u64>,
    /// Mask of each layer.
    masks: [&'a TensorView<'a>; LAYERS],
    caches: &'a [TensorView<'a>],
    window: Option<usize>,
    encoding: Encoding,
    per_head: bool,
}

/// Where element `place` of slot `slot` of a head is: which tensor of K (0) or V (1) of a layer, and which element of it.
pub fn locate(per_head: bool, kind: usize, head: usize, place: usize, slot: usize, slots: usize) -> (usize, usize) {
    let inside = |head: usize| match kind {
        0 => (head * DIM + place) * slots + slot,
        _ => (head * slots + slot) * DIM + place,
    };
    if per_head { (head, inside(0)) } else { (0, inside(head)) }
}

/// Tensors of a layer's K, or of its V.
fn tensors_of_layer(per_head: bool) -> usize {
    if per_head { HEADS } else { 1 }
}

impl Call<'_> {
    /// What row `row` sees in `layer`, hashed; an error if that is not exactly what it should see.
    fn visible(&self, row: usize, layer: usize) -> Result<u64> {
        let mut seen = Vec::new();
        for column in 0..self.slots + self.ar {
            if !attends(self.masks[layer], row * (self.slots + self.ar) + column)? {
                continue;
            }
            seen.push(match column.checked_sub(self.slots) {
                Some(own) => (self.positions[own], self.tokens[own] % 251),
                None => self.cached(layer, column)?,
            });
        }
        let own = self.positions[row];
        let window = if layer == 1 { self.window } else { None };
        let first = window.map_or(0, |window| (own + 1).saturating_sub(window as u64));
        let positions: Vec<u64> = seen.iter().map(|(position, _)| *position).collect();
        let expected: Vec<u64> = (first..=own).collect();
        if positions != expected {
            return Err(broken(format!("layer {layer} row {row} sees {positions:?}, not {expected:?}")));
        }
        Ok(hash(&seen.iter().map(|(_, token)| *token).collect::<Vec<_>>()))
    }

    /// Position and token of a cache slot, the same for every head and for K and V.
    fn cached(&self, layer: usize, slot: usize) -> Result<(u64, u64)> {
        let per_layer = tensors_of_layer(self.per_head);
        let read = |kind: usize, head: usize, place: usize| {
            let (tensor, index) = locate(self.per_head, kind, head, place, slot, self.slots);
            let tensor = &self.caches[(kind * LAYERS + layer) * per_layer + tensor];
            self.encoding.element(read(tensor, index))
        };
        let key = |head: usize, place: usize| read(0, head, place);
        let value = |head: usize, place: usize| read(1, head, place);
        // A slot is a position; what was written for another one does not fit.
        let (token, position) = (key(0, 0), slot as u64);
        for head in 0..HEADS {
            for place in 0..DIM {
                // The check element depends on the whole id; ids of one byte are their own remainder, others are not.
                let fits = |kind, found| {
                    [token, token + 251].iter().any(|&t| element(layer, kind, head, place, t, position) == found)
                };
                if !fits(0, key(head, place)) || !fits(1, value(head, place)) {
                    return Err(broken(format!("layer {layer} slot {slot} head {head} place {place} is corrupt")));
                }
            }
        }
        Ok((position, token))
    }
}

impl LoadedComponent for FakeDecoder {
    fn graphs(&self) -> &[GraphSignature] {
        &self.graphs
    }

    fn execute(
        &mut self,
        graph: usize,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        options: &ExecuteOptions,
    ) -> Result<()> {
        check_call(&self.graphs[graph], inputs, outputs)?;
        let mut control = self.control.lock().unwrap();
        match &mut control.fail_after {
            Some(0) => return Err(broken("told to fail".into())),
            Some(left) => *left -= 1,
            None => {}
        }
        let ar = inputs[0].shape[1];
        let slots = self.shape.context - ar;
        let masks = if self.shape.window.is_some() { [&inputs[1], &inputs[2]] } else { [&inputs[1]; 2] };
        let next = if self.shape.window.is_some() { 3 } else { 2 };
        let per_head = self.shape.per_head;
        let encoding = Encoding::of(&self.shape, self.graphs[graph].name.starts_with("prefill"));
        let call = Call {
            ar,
            slots,
            tokens: (0..ar).map(|i| read_id(&inputs[0], i)).collect(),
            // A block of the whole context counts from 0.
            positions: (0..ar).map(|i| if slots == 0 { i as u64 } else { read_id(&inputs[next], i) }).collect(),
            masks,
            caches: inputs.get(next + 1..).unwrap_or_default(),
            window: self.shape.window,
            encoding,
            per_head,
        };
        // Whatever is not asked for is poison.
        for output in outputs.iter_mut() {
            output.bytes.fill(0xff);
        }
        let valid = options.valid_rows.unwrap_or(ar);
        control.calls.push(valid);
        for row in 0..valid {
            let seen = [call.visible(row, 0)?, call.visible(row, 1)?];
            if options.logits_rows.as_ref().is_none_or(|rows| rows.contains(&row)) {
                let next = control.follow.map(|follow| follow(call.tokens[row] as u32));
                write_logits(&mut outputs[0], row, hash(&seen), next, &mut control)?;
            }
            for layer in 0..LAYERS {
                for (head, place) in (0..HEADS).flat_map(|head| (0..DIM).map(move |place| (head, place))) {
                    for kind in 0..2 {
                        let value = element(layer, kind, head, place, call.tokens[row], call.positions[row]);
                        let (tensor, index) = locate(per_head, kind, head, place, row, ar);
                        let tensor = 1 + (kind * LAYERS + layer) * tensors_of_layer(per_head) + tensor;
                        write(&mut outputs[tensor], index, encoding.level(value));
                    }
                }
            }
        }
        Ok(())
    }

    fn constants(&self) -> &Constants {
        &self.constants
    }

    fn weight_bytes(&self) -> u64 {
        0
    }

    fn description(&self) -> String {
        "fake".into()
    }
}

fn read_id(view: &TensorView<'_>, index: usize) -> u64 {
    match view.dtype {
        DType::I64 => view.as_slice::<i64>().unwrap()[index] as u64,
        _ => view.as_slice::<i32>().unwrap()[index] as u64,
    }
}

/// The maximum is the scripted token, or a lower-case letter or space picked by the hash.
fn write_logits(
    output: &mut TensorViewMut<'_>,
    row: usize,
    seen: u64,
    next: Option<u32>,
    control: &mut Control,
) -> Result<()> {
    let pick = |h: u64| if h.is_multiple_of(6) { u64::from(b' ') } else { u64::from(b'a') + h / 6 % 26 };
    let best = control.script.pop_front().or(next).map_or(pick(seen >> 7), u64::from);
    for id in 0..VOCABULARY {
        let noise = (hash(&[seen, id as u64]) >> 40) as f32 / (1u64 << 24) as f32;
        let logit = noise + if id as u64 == best { 2.0 } else { 0.0 };
        let at = row * VOCABULARY + id;
        match logits_encoding(output.dtype) {
            Some((scale, zero_point)) => write(output, at, (logit / scale) as u64 + zero_point as u64),
            None => output.as_mut_slice::<f32>()?[at] = if control.nan { f32::NAN } else { logit },
        }
    }
    Ok(())
}

/// A byte-level tokenizer: every byte is a token, `<|im_start|>` and `<|im_end|>` are control tokens.
pub fn tokenizer() -> Tokenizer {
    let mut vocabulary = serde_json::Map::new();
    let mut extra = 0;
    for byte in 0u32..256 {
        // GPT-2's alphabet: printable bytes stand for themselves, the others for characters from U+0100 on.
        let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let code = if printable { byte } else { 256 + extra };
        extra += u32::from(!printable);
        vocabulary.insert(char::from_u32(code).unwrap().to_string(), byte.into());
    }
    let added = |id: u32, content: &str| {
        serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                           "normalized": false, "special": true})
    };
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [added(IM_START, "<|im_start|>"), added(IM_END, "<|im_end|>"), added(AUDIO, "<|audio|>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                  "vocab": vocabulary, "merges": []},
    });
    let special = SpecialTokens { eos_token: Some("<|im_end|>".into()), eos_ids: vec![IM_END], ..Default::default() };
    Tokenizer::from_bytes(json.to_string().as_bytes(), &special).unwrap()
}

/// The template of the fake runners.
pub const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n\
                      {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A runner over a fake, with the ChatML template.
pub fn runner(shape: &Shape) -> (Runner, Shared) {
    let (component, control) = FakeDecoder::new(shape);
    let parts = RunnerParts {
        sliding_window: shape.window,
        template: Some(ChatTemplate::from_source(CHATML, &SpecialTokens::default()).unwrap()),
        ..RunnerParts::new(Box::new(component), tokenizer())
    };
    (Runner::from_parts(parts).unwrap(), control)
}

/// A callback that never stops anything.
pub fn ignore(_: Event<'_>) -> Flow {
    Flow::Continue
}
