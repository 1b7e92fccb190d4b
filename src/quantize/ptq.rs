//! Post-training quantization of a component: its plan and what was observed become grids and a file of integers.
//!
//! Weights go from the checkpoint to the file one at a time. Where choosing their integers needs to know what they are multiplied
//! with, the samples go through the graph once more, quantized as far as it is by then: each matrix sees the inputs that the
//! quantized layers before it really give.

use super::calibration::{Encodings, Observations, range_of};
use super::encoding::Encoding;
use super::fit::{WeightOptions, quantize_weight};
use super::forward::{Forward, Input, Matrix, Sequence};
use super::live::{LiveWeights, bias_level};
use super::moments::InputMoments;
use super::plan::{GraphPlan, WeightPlan};
use super::qdq::{QdqWriter, StoredForm, StoredWeight, WrittenFile};
use super::range::ValueRange;
use super::recipe::LayerPlan;
use super::weight::QuantizedWeight;
use crate::engine::cpu::pool::Pool;
use crate::error::{Error, Result};
use crate::graph::{DType, Graph, Grid, Node, Op, TensorInfo, ValueId, WeightProvider};
use half::{bf16, f16};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

/// Values of a table or a constant that are in memory at a time.
const CHUNK_VALUES: usize = 1 << 20;

/// A component that will be quantized.
pub struct Ptq<'a> {
    /// A graph that has all its matrices, e.g. that of a whole sequence.
    pub graph: &'a Graph,
    /// What of it becomes integers.
    pub plan: &'a GraphPlan,
    /// Its weights.
    pub weights: &'a (dyn WeightProvider + Sync),
    /// Threads.
    pub pool: Arc<Pool>,
}

/// A component whose weights were written as integers.
#[derive(Debug, Clone)]
pub struct QuantizedWeights {
    /// How each weight is stored.
    pub stored: BTreeMap<String, StoredWeight>,
    /// The file.
    pub file: WrittenFile,
}

/// Called with each layer, how many are done and how many there are; an error ends the work.
pub type LayerProgress<'a> = dyn FnMut(&str, usize, usize) -> Result<()> + 'a;

impl<'a> Ptq<'a> {
    /// The grids of all activations.
    ///
    /// # Errors
    /// [`Error::InvalidState`] listing tensors that nothing was observed of; what the weights report.
    pub fn encodings(&self, seen: &Observations) -> Result<Encodings> {
        let table = |value: usize| {
            let info = self.graph.values.get(value).map(|value| &value.info);
            let info = info.ok_or_else(|| Error::internal("a plan of another graph"))?;
            match self.plan.weights.get(&value) {
                Some(WeightPlan::Table(spec)) => Ok(spec.encoding(self.range_of_weight(info)?)),
                _ => Err(Error::internal(format!("{} is no table", info.name))),
            }
        };
        seen.encodings(self.plan, &table)
    }

    /// The grids of activations that nothing needs to be observed for: of a component that only looks up rows.
    ///
    /// # Errors
    /// As [`encodings`](Self::encodings).
    pub fn table_encodings(&self) -> Result<Encodings> {
        self.encodings(&Observations::default())
    }

    /// Quantize the weights into the file `path`, each as it is by itself.
    ///
    /// # Errors
    /// What the weights report, weights that no integer can stand for, I/O errors, what `progress` returns.
    pub fn write(
        &self,
        path: &Path,
        encodings: &Encodings,
        options: &WeightOptions,
        progress: &mut LayerProgress<'_>,
    ) -> Result<QuantizedWeights> {
        let live = LiveWeights::new(self.weights);
        let mut output = Output::create(self, path, encodings, &live)?;
        let matrices = self.matrices();
        for (number, node) in matrices.iter().enumerate() {
            progress(&node.name, number, matrices.len())?;
            output.quantize(node, options, None)?;
        }
        output.finish()
    }

    /// Quantize the weights into the file `path` with samples: every matrix by what it is multiplied with when everything before it
    /// is quantized. `samples` are inputs of `graphs` (see [`insert`](super::qdq::insert)), which have the same nodes as
    /// [`graph`](Self::graph) and quantize-dequantize nodes besides.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_with_samples(
        &self,
        path: &Path,
        encodings: &Encodings,
        options: &WeightOptions,
        samples: &[(&Graph, Vec<Input>)],
        progress: &mut LayerProgress<'_>,
    ) -> Result<QuantizedWeights> {
        let live = LiveWeights::new(self.weights);
        let mut output = Output::create(self, path, encodings, &live)?;
        let mut forward = Forward::new(Arc::clone(&self.pool), &live);
        for node in self.matrices().into_iter().filter(|node| node.op == Op::Embedding) {
            // Rows that are looked up are multiplied with nothing: there are no moments to fit them to.
            output.quantize(node, &WeightOptions::default(), None)?;
        }
        let sequences = samples.iter().map(|(graph, inputs)| Sequence::new(graph, inputs, false));
        let mut sequences = sequences.collect::<Result<Vec<_>>>()?;
        let ignore = &mut |_: &Node, _: &[f32]| Ok(());
        for sequence in &mut sequences {
            forward.advance(sequence, ignore)?;
        }
        let nodes = self.graph.nodes.iter().map(|node| (node.name.as_str(), node)).collect::<HashMap<_, _>>();
        let (mut done, total) = (0, sequences.first().map_or(0, Sequence::matrices));
        while let Some(name) = sequences.first().and_then(Sequence::next_matrix).map(|node| node.name.clone()) {
            progress(&name, done, total)?;
            let node =
                nodes.get(name.as_str()).ok_or_else(|| Error::internal(format!("{name} is in one graph only")))?;
            let matrix = output.quantize(node, options, Some((&forward, &sequences)))?;
            for sequence in &mut sequences {
                forward.multiply(sequence, &matrix, ignore)?;
                forward.advance(sequence, ignore)?;
            }
            done += 1;
        }
        output.finish()
    }

    /// Nodes that multiply with a matrix, in graph order.
    fn matrices(&self) -> Vec<&'a Node> {
        let graph = self.graph;
        let is_matrix = |node: &&Node| {
            matches!(node.op, Op::Linear | Op::Embedding)
                && matches!(self.plan.weights.get(&(node.inputs[1].0 as usize)), Some(WeightPlan::Matrix(_)))
        };
        graph.nodes.iter().filter(is_matrix).collect()
    }

    fn smallest_float(&self, info: &TensorInfo) -> Result<DType> {
        let (mut half, mut brain) = (true, true);
        self.for_each_chunk(info, &mut |_, values| {
            half &= values.iter().all(|&value| f16::from_f32(value).to_f32() == value);
            brain &= values.iter().all(|&value| bf16::from_f32(value).to_f32() == value);
            Ok(())
        })?;
        Ok(match (half, brain) {
            (true, _) => DType::F16,
            (false, true) => DType::BF16,
            (false, false) => DType::F32,
        })
    }

    fn range_of_weight(&self, info: &TensorInfo) -> Result<ValueRange> {
        let mut range = ValueRange::default();
        self.for_each_chunk(info, &mut |_, values| {
            range = range.union(range_of(values, &self.pool));
            Ok(())
        })?;
        Ok(range)
    }

    /// Read a weight, some rows at a time; `f` is called with the first row and the values.
    fn for_each_chunk(&self, info: &TensorInfo, f: &mut dyn FnMut(usize, &[f32]) -> Result<()>) -> Result<()> {
        let (rows, width) = match info.shape.as_slice() {
            [] => (1, 1),
            &[length] => (1, length),
            [rows, rest @ ..] => (*rows, rest.iter().product()),
        };
        let at_once = (CHUNK_VALUES / width.max(1)).clamp(1, rows.max(1));
        for first in (0..rows).step_by(at_once) {
            let count = at_once.min(rows - first);
            let mut values = vec![0.0; count * width];
            read_parallel(self.weights, &info.name, first, width, &mut values, &self.pool)?;
            f(first, &values)?;
        }
        Ok(())
    }
}

/// Write the weights of a component that stays float: each in the smallest of f16, bf16 and f32 that holds all its values exactly.
///
/// # Errors
/// What the weights report, I/O errors, what `progress` returns.
pub fn write_float(
    graph: &Graph,
    weights: &(dyn WeightProvider + Sync),
    path: &Path,
    pool: &Arc<Pool>,
    progress: &mut LayerProgress<'_>,
) -> Result<QuantizedWeights> {
    let empty = GraphPlan::empty(graph);
    let ptq = Ptq { graph, plan: &empty, weights, pool: Arc::clone(pool) };
    let infos = graph.weights().collect::<Vec<_>>();
    let mut stored = BTreeMap::new();
    for info in &infos {
        stored.insert(info.name.clone(), StoredWeight::float(&info.shape, ptq.smallest_float(info)?));
    }
    let mut writer = QdqWriter::create(path, &stored)?;
    for (number, info) in infos.iter().enumerate() {
        progress(&info.name, number, infos.len())?;
        let dtype = stored[&info.name].dtype;
        ptq.for_each_chunk(info, &mut |_, values| writer.append(&info.name, &float_bytes(dtype, values)))?;
    }
    Ok(QuantizedWeights { stored, file: writer.finish()? })
}

fn float_bytes(dtype: DType, values: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F16 => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

/// Read rows on all threads.
fn read_parallel(
    weights: &(dyn WeightProvider + Sync),
    name: &str,
    first: usize,
    width: usize,
    out: &mut [f32],
    pool: &Pool,
) -> Result<()> {
    let rows = out.len() / width.max(1);
    let per_task = rows.div_ceil(4 * pool.threads()).max(1);
    let failure = Mutex::new(None);
    pool.for_each_chunk(out, per_task * width.max(1), &|task, out| {
        let first = first + task * per_task;
        if let Err(error) = weights.read_rows(name, first..first + out.len() / width.max(1), out) {
            failure.lock().get_or_insert(error);
        }
    });
    failure.into_inner().map_or(Ok(()), Err)
}

/// The file that is being written.
struct Output<'o, 'a> {
    ptq: &'o Ptq<'a>,
    encodings: &'o Encodings,
    live: &'o LiveWeights<'a>,
    stored: BTreeMap<String, StoredWeight>,
    writer: QdqWriter,
    /// Weights that several nodes multiply with are quantized once.
    matrices: HashMap<String, Arc<QuantizedWeight>>,
    /// Moments of the value that was multiplied with last: queries, keys and values are often made of the same one.
    moments: Option<(ValueId, Arc<InputMoments>)>,
}

impl<'o, 'a> Output<'o, 'a> {
    /// Begin the file, and write everything that is not a matrix or a matrix's bias.
    fn create(ptq: &'o Ptq<'a>, path: &Path, encodings: &'o Encodings, live: &'o LiveWeights<'a>) -> Result<Self> {
        let stored = StoredWeight::of_plan(ptq.graph, ptq.plan)?;
        let writer = QdqWriter::create(path, &stored)?;
        let mut output = Self { ptq, encodings, live, stored, writer, matrices: HashMap::new(), moments: None };
        for (&value, weight) in &ptq.plan.weights {
            let info = &ptq.graph.values[value].info;
            let encoding = match weight {
                WeightPlan::Matrix(_) | WeightPlan::Bias { .. } => continue,
                WeightPlan::OnSlot(slot) => encodings.get(&ptq.plan.slots[*slot].name)?,
                WeightPlan::Table(spec) | WeightPlan::Constant(spec) => spec.encoding(ptq.range_of_weight(info)?),
                WeightPlan::LooseBias => loose_bias(ptq.range_of_weight(info)?),
            };
            output.write_on_grid(info, encoding)?;
        }
        Ok(output)
    }

    /// Write all of a weight on one grid.
    fn write_on_grid(&mut self, info: &TensorInfo, encoding: Encoding) -> Result<()> {
        let Encoding { scale, zero_point, qmin, qmax } = encoding;
        let stored =
            self.stored.get_mut(&info.name).ok_or_else(|| Error::internal(format!("{} is unplanned", info.name)))?;
        stored.form = StoredForm::Grid { encoding: Some(encoding) };
        let (dtype, writer) = (stored.dtype, &mut self.writer);
        if dtype == DType::I32 {
            self.live.decide_bias(&info.name, vec![scale; info.shape.iter().product()]);
        } else {
            self.live.decide_grid(&info.name, Grid::new(scale, zero_point, qmin, qmax));
        }
        self.ptq.for_each_chunk(info, &mut |_, values| {
            let levels = values.iter().map(|&value| match dtype {
                DType::I32 => bias_level(value, scale),
                _ => encoding.quantize(value),
            });
            writer.append(&info.name, &to_bytes(dtype, levels))
        })
    }

    /// Decide about a node's matrix, and its bias if it has one; the matrix as it is from now on.
    fn quantize(
        &mut self,
        node: &Node,
        options: &WeightOptions,
        samples: Option<(&Forward<'_>, &[Sequence<'_>])>,
    ) -> Result<Matrix> {
        let graph = self.ptq.graph;
        let info = &graph.value(node.inputs[1]).info;
        let &[rows, cols] = info.shape.as_slice() else {
            return Err(Error::internal(format!("{} {:?} is no matrix", info.name, info.shape)));
        };
        let weight = match self.matrices.get(&info.name) {
            Some(weight) => Arc::clone(weight),
            None => {
                let weight = Arc::new(self.quantize_matrix(node, info, [rows, cols], options, samples)?);
                if node.op == Op::Embedding {
                    self.live.decide_integers(&info.name, Arc::clone(&weight));
                }
                if self.is_shared(info) {
                    self.matrices.insert(info.name.clone(), Arc::clone(&weight));
                }
                weight
            }
        };
        if let Some(&bias) = node.inputs.get(2).filter(|_| node.op == Op::Linear) {
            self.write_bias(&graph.value(bias).info, bias.0 as usize, &weight)?;
        }
        Matrix::pack([rows, cols], &self.ptq.pool, &|first, out| {
            let rows = out.chunks_exact_mut(cols).enumerate();
            rows.into_iter().try_for_each(|(row, out)| weight.dequantize_row(first + row, out))
        })
    }

    fn is_shared(&self, info: &TensorInfo) -> bool {
        let reads =
            |node: &&Node| node.inputs.get(1).is_some_and(|&id| self.ptq.graph.value(id).info.name == info.name);
        self.ptq.graph.nodes.iter().filter(reads).count() > 1
    }

    fn quantize_matrix(
        &mut self,
        node: &Node,
        info: &TensorInfo,
        [rows, cols]: [usize; 2],
        options: &WeightOptions,
        samples: Option<(&Forward<'_>, &[Sequence<'_>])>,
    ) -> Result<QuantizedWeight> {
        let Some(WeightPlan::Matrix(layer)) = self.ptq.plan.weights.get(&(node.inputs[1].0 as usize)).copied() else {
            return Err(Error::internal(format!("{} is unplanned", info.name)));
        };
        let mut values = vec![0.0; rows * cols];
        read_parallel(self.ptq.weights, &info.name, 0, cols, &mut values, &self.ptq.pool)?;
        let moments = match samples {
            Some(samples) if options.need_moments() => Some(self.moments_of(cols, samples)?),
            _ => None,
        };
        let LayerPlan { dtype, granularity, .. } = layer;
        let weight =
            quantize_weight(&values, (rows, cols), dtype, granularity, options, moments.as_deref(), &self.ptq.pool)
                .map_err(|error| Error::invalid(format!("layer {}: {error}", node.name)))?;
        self.write_matrix(&info.name, &weight)?;
        Ok(weight)
    }

    /// Moments of what the samples are about to be multiplied with.
    fn moments_of(
        &mut self,
        cols: usize,
        (forward, sequences): (&Forward<'_>, &[Sequence<'_>]),
    ) -> Result<Arc<InputMoments>> {
        let input = sequences.first().and_then(Sequence::next_matrix).map(|node| node.inputs[0]);
        if let (Some(input), Some((known, moments))) = (input, &self.moments)
            && input == *known
        {
            return Ok(Arc::clone(moments));
        }
        let mut moments = InputMoments::new(cols)?;
        for sequence in sequences {
            moments.add(forward.matrix_input(sequence)?, &self.ptq.pool)?;
        }
        let moments = Arc::new(moments);
        self.moments = input.map(|input| (input, Arc::clone(&moments)));
        Ok(moments)
    }

    fn write_matrix(&mut self, name: &str, weight: &QuantizedWeight) -> Result<()> {
        let stored = self.stored.get_mut(name).ok_or_else(|| Error::internal(format!("{name} is unplanned")))?;
        let levels = weight.levels().iter().map(|&level| level.into());
        self.writer.append(name, &to_bytes(stored.dtype, levels))?;
        let (rows, _) = weight.shape();
        match (weight.block_scales(), stored.form) {
            (Some(blocks), _) => {
                let scales = blocks.iter().flat_map(|block| block.scale.to_le_bytes()).collect::<Vec<_>>();
                let multipliers = blocks.iter().flat_map(|block| block.multipliers.iter().copied()).collect::<Vec<_>>();
                self.writer.append(&format!("{name}.scale"), &scales)?;
                self.writer.append(&format!("{name}.multiplier"), &multipliers)
            }
            (None, StoredForm::Channels { .. }) => {
                let scales = (0..rows).flat_map(|row| weight.grid(row, 0).scale.to_le_bytes()).collect::<Vec<_>>();
                self.writer.append(&format!("{name}.scale"), &scales)
            }
            (None, _) => {
                stored.form = StoredForm::Grid { encoding: Some(weight.grid(0, 0)) };
                Ok(())
            }
        }
    }

    /// A bias in units of what the products before it are counted in.
    fn write_bias(&mut self, info: &TensorInfo, value: usize, weight: &QuantizedWeight) -> Result<()> {
        let Some(WeightPlan::Bias { input, .. }) = self.ptq.plan.weights.get(&value) else {
            return Err(Error::internal(format!("{} is unplanned", info.name)));
        };
        let mut values = vec![0.0; info.shape.iter().product()];
        self.ptq.weights.read_rows(&info.name, 0..1, &mut values)?;
        let input = self.encodings.get(&self.ptq.plan.slots[*input].name)?.scale;
        let per_tensor = matches!(
            self.stored.get(&weight_of_bias(self.ptq, value)),
            Some(StoredWeight { form: StoredForm::Grid { .. }, .. })
        );
        let scales = (0..values.len())
            .map(|row| match weight.block_scales() {
                _ if per_tensor => loose_bias(ValueRange::of(&values)).scale,
                Some(blocks) => input * blocks[row].scale,
                None => input * weight.grid(row, 0).scale,
            })
            .collect::<Vec<_>>();
        let levels = values.iter().zip(&scales).map(|(&value, &scale)| bias_level(value, scale));
        self.writer.append(&info.name, &to_bytes(DType::I32, levels))?;
        let bytes = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect::<Vec<_>>();
        self.writer.append(&format!("{}.scale", info.name), &bytes)?;
        self.live.decide_bias(&info.name, scales);
        Ok(())
    }

    fn finish(self) -> Result<QuantizedWeights> {
        Ok(QuantizedWeights { stored: self.stored, file: self.writer.finish()? })
    }
}

/// Name of the matrix that a bias belongs to.
fn weight_of_bias(ptq: &Ptq<'_>, bias: usize) -> String {
    match ptq.plan.weights.get(&bias) {
        Some(WeightPlan::Bias { matrix, .. }) => ptq.graph.values[*matrix].info.name.clone(),
        _ => String::new(),
    }
}

/// 32-bit integers around 0 for all of a bias.
fn loose_bias(range: ValueRange) -> Encoding {
    let scale = (f64::from(range.magnitude()) / f64::from(i32::MAX)).max(f64::from(f32::MIN_POSITIVE)) as f32;
    Encoding { scale, zero_point: 0, qmin: -i32::MAX, qmax: i32::MAX }
}

/// Integers as a file holds them.
fn to_bytes(dtype: DType, levels: impl Iterator<Item = i32>) -> Vec<u8> {
    match dtype {
        DType::I8 => levels.map(|level| (level as i8).cast_unsigned()).collect(),
        DType::U8 => levels.map(|level| level as u8).collect(),
        DType::I16 => levels.flat_map(|level| (level as i16).to_le_bytes()).collect(),
        DType::U16 => levels.flat_map(|level| (level as u16).to_le_bytes()).collect(),
        _ => levels.flat_map(i32::to_le_bytes).collect(),
    }
}
