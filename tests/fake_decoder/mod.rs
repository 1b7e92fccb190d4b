//! A decoder without a network: its next token is a hash of what the row can see.
//!
//! Every KV element is a hash of layer, place, token and position. For each row the fake walks the columns its mask
//! lets it see, checks that K and V of each hold what was written for some token and position, that the positions run
//! without a gap up to the row's own, and hashes the tokens. A bug in masks, strides, commits or rewinds is therefore
//! an engine error or another text, never luck.

use etgenai::chat::{ChatTemplate, SpecialTokens, Tokenizer};
use etgenai::engine::{ExecuteOptions, GraphSignature, LoadedComponent, check_call};
use etgenai::graph::{DType, TensorInfo, TensorView, TensorViewMut};
use etgenai::runner::{Event, Flow, Runner, RunnerParts};
use etgenai::{Error, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// Ids 0..=255 are bytes, then the control tokens.
pub const IM_START: u32 = 256;
pub const IM_END: u32 = 257;
pub const VOCABULARY: usize = 258;

const LAYERS: usize = 2;
const HEADS: usize = 2;
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
}

impl Default for Shape {
    fn default() -> Self {
        Self { blocks: vec![1, 32], context: 256, window: None, kv: DType::F32, mask: DType::F32, tokens: DType::I32 }
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
}

pub type Shared = Arc<Mutex<Control>>;

pub struct FakeDecoder {
    graphs: Vec<GraphSignature>,
    window: Option<usize>,
    control: Shared,
}

impl FakeDecoder {
    pub fn new(shape: &Shape) -> (Self, Shared) {
        let control = Shared::default();
        let graphs = shape.blocks.iter().map(|&ar| signature(shape, ar)).collect();
        (Self { graphs, window: shape.window, control: control.clone() }, control)
    }
}

fn signature(shape: &Shape, ar: usize) -> GraphSignature {
    let info = |name: String, dtype, shape: &[usize]| TensorInfo { name, dtype, shape: shape.to_vec() };
    let slots = shape.context - ar;
    let mut inputs = vec![
        info("tokens".into(), shape.tokens, &[1, ar]),
        info("attention_mask".into(), shape.mask, &[1, 1, ar, shape.context]),
    ];
    if shape.window.is_some() {
        inputs.push(info("window_mask".into(), shape.mask, &[1, 1, ar, shape.context]));
    }
    inputs.push(info("input_pos".into(), DType::I32, &[1, ar]));
    inputs.extend((0..LAYERS).map(|l| info(format!("k_cache_{l}"), shape.kv, &[1, HEADS, DIM, slots])));
    inputs.extend((0..LAYERS).map(|l| info(format!("v_cache_{l}"), shape.kv, &[1, HEADS, slots, DIM])));
    let mut outputs = vec![info("logits".into(), DType::F32, &[1, ar, VOCABULARY])];
    outputs.extend((0..LAYERS).map(|l| info(format!("k_out_{l}"), shape.kv, &[1, HEADS, DIM, ar])));
    outputs.extend((0..LAYERS).map(|l| info(format!("v_out_{l}"), shape.kv, &[1, HEADS, ar, DIM])));
    let name = if ar == 1 { "kv_forward".into() } else { format!("prefill_forward_{ar}") };
    GraphSignature { name, inputs, outputs }
}

fn hash(values: &[u64]) -> u64 {
    values.iter().fold(0xcbf2_9ce4_8422_2325, |h, v| (h ^ v).wrapping_mul(0x0100_0000_01b3).rotate_left(23))
}

/// KV element `place` of K (0) or V (1): the first two tell token and position, the third checks them.
fn element(layer: usize, kind: usize, head: usize, place: usize, token: u64, position: u64) -> u64 {
    match place {
        0 => token % 251,
        1 => position % 251,
        _ => hash(&[layer as u64, kind as u64, head as u64, token, position]) % 251,
    }
}

fn read(view: &TensorView<'_>, index: usize) -> u64 {
    match view.dtype {
        DType::F32 => view.as_slice::<f32>().unwrap()[index] as u64,
        DType::U16 => view.as_slice::<u16>().unwrap()[index].into(),
        _ => view.bytes[index].into(),
    }
}

fn write(view: &mut TensorViewMut<'_>, index: usize, value: u64) {
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
        let (keys, values) = (&self.caches[layer], &self.caches[LAYERS + layer]);
        let key = |head: usize, place: usize| read(keys, (head * DIM + place) * self.slots + slot);
        let value = |head: usize, place: usize| read(values, (head * self.slots + slot) * DIM + place);
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
        let first_cache = if self.window.is_some() { 4 } else { 3 };
        let call = Call {
            ar,
            slots: inputs[1].shape[3] - ar,
            tokens: (0..ar).map(|i| read_id(&inputs[0], i)).collect(),
            positions: (0..ar).map(|i| read_id(&inputs[first_cache - 1], i)).collect(),
            masks: [&inputs[1], &inputs[first_cache - 2]],
            caches: &inputs[first_cache..],
            window: self.window,
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
                write_logits(&mut outputs[0], row, hash(&seen), &mut control)?;
            }
            for layer in 0..LAYERS {
                for (head, place) in (0..HEADS).flat_map(|head| (0..DIM).map(move |place| (head, place))) {
                    let value = |kind| element(layer, kind, head, place, call.tokens[row], call.positions[row]);
                    write(&mut outputs[1 + layer], (head * DIM + place) * ar + row, value(0));
                    write(&mut outputs[1 + LAYERS + layer], (head * ar + row) * DIM + place, value(1));
                }
            }
        }
        Ok(())
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
fn write_logits(output: &mut TensorViewMut<'_>, row: usize, seen: u64, control: &mut Control) -> Result<()> {
    let pick = |h: u64| if h.is_multiple_of(6) { u64::from(b' ') } else { u64::from(b'a') + h / 6 % 26 };
    let best = control.script.pop_front().map_or(pick(seen >> 7), u64::from);
    let logits = &mut output.as_mut_slice::<f32>()?[row * VOCABULARY..(row + 1) * VOCABULARY];
    for (id, logit) in logits.iter_mut().enumerate() {
        let noise = (hash(&[seen, id as u64]) >> 40) as f32 / (1u64 << 24) as f32;
        *logit = if control.nan { f32::NAN } else { noise + if id as u64 == best { 2.0 } else { 0.0 } };
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
        "added_tokens": [added(IM_START, "<|im_start|>"), added(IM_END, "<|im_end|>")],
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
