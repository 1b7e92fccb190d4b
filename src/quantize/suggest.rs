//! Mixed precision, suggested from how far each layer of a quantized model is from the float one.
//!
//! This is upstream's procedure (`--quant_recipe_suggestion`): layers of one kind are put into groups along the depth of the model;
//! groups with a low signal-to-noise ratio get 8-bit weights, all others 4-bit weights in blocks, of which there are as many
//! recipes as block sizes fit.

use super::check::LayerError;
use super::dtype::{QuantDtype, WeightGranularity};
use super::plan::layer_names;
use super::recipe::{Recipe, Rule};
use crate::artefact::check_file_name;
use crate::error::Result;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Parts that the depth of a model is cut into.
const PARTS: usize = 5;
/// A group below this many decibels, by its mean, its median or its smallest value, is sensitive.
const SENSITIVE_DB: f64 = 10.0;
/// Block sizes that are worth trying: smaller ones cost as much as wider integers, larger ones are little better than channels.
const BLOCKS: std::ops::RangeInclusive<usize> = 16..=64;

/// Matrices of one kind in one part of the model, and their signal-to-noise ratios in decibels.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupError {
    /// Path of the layers with the range of their numbers, e.g. `layers.[0-5].feed_forward.w2_conv`.
    pub name: String,
    /// Mean over the layers.
    pub mean_db: f64,
    /// Median over the layers; of an even number the mean of the two in the middle.
    pub median_db: f64,
    /// The worst layer.
    pub min_db: f64,
    /// The best layer.
    pub max_db: f64,
    /// Layers with a value.
    pub count: usize,
    /// A regular expression that is found in the names of its layers and of no others.
    pub pattern: String,
}

/// A recipe that is worth trying.
#[derive(Debug, Clone)]
pub struct SuggestedRecipe {
    /// Inputs that share a scale in layers that are not sensitive.
    pub block: usize,
    /// The recipe.
    pub recipe: Recipe,
}

/// What is suggested for a model.
#[derive(Debug, Clone)]
pub struct Suggestion {
    /// Name of the model; begins the names of the files.
    pub model: String,
    /// Groups, the lowest median first.
    pub groups: Vec<GroupError>,
    /// One a block size, the smallest first; none if no block size from 16 to 64 divides the inputs of all layers.
    pub recipes: Vec<SuggestedRecipe>,
}

impl GroupError {
    /// Whether it is suggested to give it wider integers.
    pub fn is_sensitive(&self) -> bool {
        [self.mean_db, self.median_db, self.min_db].iter().any(|db| *db < SENSITIVE_DB)
    }

    fn of(name: String, Members { mut values, names }: Members) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min_db, max_db, count) = (*values.first()?, *values.last()?, values.len());
        let median_db = (values.get((count - 1) / 2)? + values.get(count / 2)?) / 2.0;
        let mean_db = values.iter().sum::<f64>() / count as f64;
        Some(Self { name, mean_db, median_db, min_db, max_db, count, pattern: pattern_of(&names) })
    }
}

/// Suggest recipes for `model`. `layers` are its matrices beside the float model (samples without noise count for nothing, graph
/// outputs neither), `input_widths` the inputs of all matrices. Rules by name of the recipe that the model has are kept, as far as no
/// sensitive group decides otherwise.
///
/// # Errors
/// A rule of `recipe` that cannot be added to another recipe: none that was read or built.
pub fn suggest(
    model: &str,
    layers: &[LayerError],
    input_widths: &[usize],
    recipe: Option<&Recipe>,
) -> Result<Suggestion> {
    let groups = groups(layers);
    let sensitive = groups
        .iter()
        .filter(|group| group.is_sensitive())
        .map(|group| Rule::for_name(&group.pattern, QuantDtype::A16W8, WeightGranularity::PerChannel));
    let sensitive = sensitive.collect::<Vec<_>>();
    let kept = recipe.map(Recipe::rules).unwrap_or_default().iter().filter(|rule| rule.pattern.is_some());
    let kept = kept.filter(|rule| !sensitive.contains(rule)).collect::<Vec<_>>();
    let suggested = |block: usize| {
        let mut recipe = Recipe::new(QuantDtype::A16W4);
        recipe.set_kv8(true);
        recipe.add(Rule::for_linear(QuantDtype::A16W4Block, WeightGranularity::PerBlock(block)))?;
        kept.iter().try_for_each(|rule| recipe.add((*rule).clone()))?;
        sensitive.iter().try_for_each(|rule| recipe.add(rule.clone()))?;
        Ok(SuggestedRecipe { block, recipe })
    };
    let recipes = block_sizes(input_widths).into_iter().map(suggested).collect::<Result<_>>()?;
    Ok(Suggestion { model: model.into(), groups, recipes })
}

impl Suggestion {
    /// Names and contents of the files that upstream's procedure writes: `<model>_quantization_error.csv`, and
    /// `<model>_suggest_recipe_<block>.json` for each recipe, as [`Recipe::from_json`] reads it.
    ///
    /// # Errors
    /// [`Error::Format`](crate::Error::Format) for a model whose name cannot begin the name of a file.
    pub fn files(&self) -> Result<Vec<(String, String)>> {
        let model = &self.model;
        let csv = format!("{model}_quantization_error.csv");
        check_file_name(&csv, Path::new("suggestion"), "model")?;
        let mut files = vec![(csv, self.csv())];
        for SuggestedRecipe { block, recipe } in &self.recipes {
            files.push((format!("{model}_suggest_recipe_{block}.json"), recipe.to_json()?));
        }
        Ok(files)
    }

    /// The groups as a table, with upstream's names of the columns.
    pub fn csv(&self) -> String {
        let mut csv = String::from("group_name,avg_sqnr,median_sqnr,min_sqnr,max_sqnr,count\n");
        for group in &self.groups {
            let GroupError { name, mean_db, median_db, min_db, max_db, count, .. } = group;
            let _ = writeln!(csv, "{},{mean_db},{median_db},{min_db},{max_db},{count}", csv_field(name));
        }
        csv
    }
}

/// A field of a CSV file, in quotes where it would be read as several (RFC 4180).
fn csv_field(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

/// What is in a group.
#[derive(Default)]
struct Members {
    /// Decibels.
    values: Vec<f64>,
    /// Paths of all layers, those without noise too.
    names: Vec<String>,
}

/// Matrices in groups, the lowest median first.
fn groups(layers: &[LayerError]) -> Vec<GroupError> {
    let matrices = || layers.iter().filter(|layer| !layer.layer.starts_with("output "));
    let most = matrices().filter_map(|layer| numbered(&layer.layer)).map(|(_, number, _)| number).max();
    let count = most.map_or(0, |most| most.saturating_add(1));
    let mut members = BTreeMap::<String, Members>::new();
    for layer in matrices() {
        let Some(path) = layer_names(&layer.layer).pop() else { continue };
        let group = members.entry(group_name(&path, count)).or_default();
        group.values.extend(layer.mean_db());
        group.names.push(path);
    }
    let mut groups =
        members.into_iter().filter_map(|(name, members)| GroupError::of(name, members)).collect::<Vec<_>>();
    groups.sort_by(|a, b| a.median_db.total_cmp(&b.median_db));
    groups
}

/// A regular expression for paths that differ in the number of the layer only.
fn pattern_of(paths: &[String]) -> String {
    let numbers = paths.iter().filter_map(|path| numbered(path)).map(|(_, number, _)| number.to_string());
    let numbers = numbers.collect::<Vec<_>>().join("|");
    match paths.first().map(|path| (path, numbered(path))) {
        Some((_, Some((before, _, after)))) => {
            format!(r"{}\.({numbers})\.{}", regex::escape(before), regex::escape(after))
        }
        Some((path, None)) => regex::escape(path),
        None => String::new(),
    }
}

/// `<before>layers.<number>.<after>` in pieces; `before` ends with the word.
fn numbered(path: &str) -> Option<(&str, usize, &str)> {
    let start = path.find("layers.")? + "layers".len();
    let (number, after) = path.get(start + 1..)?.split_once('.')?;
    Some((&path[..start], number.parse().ok()?, after))
}

/// The group of a layer of a model with `count` layers: the last part takes what is left.
fn group_name(path: &str, count: usize) -> String {
    let Some((before, number, after)) = numbered(path) else { return path.to_owned() };
    let step = (count / PARTS).max(1);
    let part = (number / step).min(PARTS - 1);
    let last = if part == PARTS - 1 { count.saturating_sub(1) } else { (part + 1) * step - 1 };
    format!("{before}.[{}-{last}].{after}", part * step)
}

/// Block sizes that divide the inputs of every matrix.
fn block_sizes(input_widths: &[usize]) -> Vec<usize> {
    let common = input_widths.iter().fold(0, |a, &b| greatest_common_divisor(a, b));
    BLOCKS.filter(|block| common > 0 && common % block == 0).collect()
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantize::LayerKind;

    fn layer(name: &str, sqnr_db: &[Option<f64>]) -> LayerError {
        LayerError { layer: name.into(), sqnr_db: sqnr_db.to_vec() }
    }

    /// 12 layers: the down projections of the first two are bad, and one value projection of the last part.
    fn layers() -> Vec<LayerError> {
        let mut layers = Vec::new();
        for number in 0..12 {
            let down = if number < 2 { 5.0 + number as f64 } else { 30.0 };
            let value = if number == 11 { 9.9 } else { 40.0 };
            layers.push(layer(&format!("layers.{number}.attention.wv"), &[Some(value), Some(f64::INFINITY), None]));
            layers.push(layer(&format!("layers.{number}.feed_forward.w2"), &[Some(down - 1.0), Some(down + 1.0)]));
        }
        layers.push(layer("output", &[Some(25.0)]));
        layers.push(layer("output logits", &[Some(1.0)]));
        layers
    }

    #[test]
    fn layers_are_grouped_along_the_depth_and_the_last_group_takes_the_rest() {
        let groups = suggest("m", &layers(), &[64], None).unwrap().groups;
        let names = groups.iter().map(|group| group.name.as_str()).collect::<Vec<_>>();
        assert_eq!(names.len(), 11, "{names:?}");
        assert_eq!(names[0], "layers.[0-1].feed_forward.w2_conv");
        let find = |name: &str| groups.iter().find(|group| group.name == name).expect(name);
        let first = find("layers.[0-1].feed_forward.w2_conv");
        assert_eq!((first.mean_db, first.median_db, first.min_db, first.max_db, first.count), (5.5, 5.5, 5.0, 6.0, 2));
        // 8, 9, 10, 11: 4 layers, of which one is bad. An infinite value counts for nothing.
        let last = find("layers.[8-11].attention.wv_conv");
        assert_eq!((last.count, last.median_db, last.min_db), (4, 40.0, 9.9));
        assert!(last.is_sensitive() && first.is_sensitive() && !find("output.conv").is_sensitive());
        assert!(groups.windows(2).all(|pair| pair[0].median_db <= pair[1].median_db));
    }

    #[test]
    fn sensitive_groups_get_wide_weights_and_the_others_blocks_of_every_size_that_fits() {
        let analysed = Recipe::uniform(QuantDtype::A16W4Block, 32).unwrap();
        let suggestion = suggest("tiny", &layers(), &[192, 576, 96], Some(&analysed)).unwrap();
        assert_eq!(suggestion.recipes.iter().map(|r| r.block).collect::<Vec<_>>(), [16, 24, 32, 48]);
        for SuggestedRecipe { block, recipe } in &suggestion.recipes {
            assert!(recipe.kv8());
            let plan = |name: &str| {
                let names = layer_names(name);
                let plan = recipe.plan(&names.iter().map(String::as_str).collect::<Vec<_>>(), LayerKind::Linear);
                (plan.dtype, plan.granularity)
            };
            let wide = (QuantDtype::A16W8, WeightGranularity::PerChannel);
            let blocks = (QuantDtype::A16W4Block, WeightGranularity::PerBlock(*block));
            assert_eq!(plan("layers.1.feed_forward.w2"), wide);
            assert_eq!(plan("layers.2.feed_forward.w2"), blocks);
            assert_eq!(plan("layers.10.attention.wv"), wide, "in one group with the bad one");
            assert_eq!(plan("layers.1.attention.wv"), blocks, "10 and 11 are not 1");
            assert_eq!(plan("output"), wide, "a rule by name of the recipe that was analysed");
        }
    }

    #[test]
    fn files_are_read_back() {
        let suggestion = suggest("tiny", &layers(), &[64], None).unwrap();
        let files = suggestion.files().unwrap();
        let names = files.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>();
        assert_eq!(
            names,
            [
                "tiny_quantization_error.csv",
                "tiny_suggest_recipe_16.json",
                "tiny_suggest_recipe_32.json",
                "tiny_suggest_recipe_64.json"
            ]
        );
        let csv = files[0].1.lines().collect::<Vec<_>>();
        assert_eq!(csv[0], "group_name,avg_sqnr,median_sqnr,min_sqnr,max_sqnr,count");
        assert_eq!(csv[1], "layers.[0-1].feed_forward.w2_conv,5.5,5.5,5,6,2");
        assert_eq!(csv.len(), suggestion.groups.len() + 1);
        let recipe = Recipe::from_json(&files[1].1, "suggested").unwrap();
        assert_eq!(recipe.rules(), suggestion.recipes[0].recipe.rules());
        let escaping = Suggestion { model: "../x".into(), ..suggestion };
        assert!(escaping.files().unwrap_err().to_string().contains("../x_quantization_error.csv"));
        assert_eq!([csv_field("a.b"), csv_field("a,\"b")], ["a.b", "\"a,\"\"b\""]);
    }

    #[test]
    fn a_model_with_few_or_odd_layers_is_no_trouble() {
        let two = [layer("layers.0.attention.wq", &[Some(3.0)]), layer("layers.1.attention.wq", &[Some(50.0)])];
        let groups = suggest("m", &two, &[], None).unwrap().groups;
        let names = groups.iter().map(|group| (group.name.as_str(), group.pattern.clone())).collect::<Vec<_>>();
        assert_eq!(names[0], ("layers.[0-0].attention.wq_conv", r"layers\.(0)\.attention\.wq_conv".to_owned()));
        assert_eq!(names[1].0, "layers.[1-1].attention.wq_conv");
        let huge = [layer(&format!("layers.{}.attention.wq", usize::MAX), &[Some(3.0)]), layer("layers.x.y", &[None])];
        assert_eq!(suggest("m", &huge, &[7], None).unwrap().recipes.len(), 0);
        assert!(suggest("m", &[], &[48, 32], None).unwrap().recipes.iter().map(|r| r.block).eq([16]));
    }
}
