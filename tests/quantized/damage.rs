//! Damaged files are refused, and the error says which array is wrong.

use super::{blocks, copy_of, quantized, wide};
use etgenai::pipeline::QuantizedModel;
use etgenai::quantize::{ComponentFile, qdq::StoredForm};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use std::path::{Path, PathBuf};

/// An array as a test may change it.
struct Array {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

fn arrays(path: &Path) -> Vec<Array> {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let array = |(name, view): (String, TensorView<'_>)| Array {
        name,
        dtype: view.dtype(),
        shape: view.shape().to_vec(),
        data: view.data().to_vec(),
    };
    file.tensors().into_iter().map(array).collect()
}

fn write(path: &Path, arrays: &[Array]) {
    let views = arrays
        .iter()
        .map(|array| (array.name.clone(), TensorView::new(array.dtype, array.shape.clone(), &array.data).unwrap()));
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// The error of opening the decoder after `change` was made to its arrays.
fn error_after(change: impl FnOnce(&mut Vec<Array>)) -> String {
    let model = quantized(blocks("smollm2"));
    let copy = copy_of(&model);
    let path = copy.path().join("text_decoder.safetensors");
    let mut arrays = arrays(&path);
    change(&mut arrays);
    write(&path, &arrays);
    open(copy.path()).unwrap_err().to_string()
}

fn open(directory: &Path) -> etgenai::Result<()> {
    let file = ComponentFile::open(&directory.join("text_decoder.json"))?;
    file.open_weights(&directory.join("text_decoder.safetensors")).map(drop)
}

const MATRIX: &str = "layers.1.feed_forward.w2.weight";

fn find<'a>(arrays: &'a mut [Array], name: &str) -> &'a mut Array {
    arrays.iter_mut().find(|array| array.name == name).unwrap_or_else(|| panic!("no array {name}"))
}

#[test]
fn a_file_that_is_whole_opens() {
    let copy = copy_of(&quantized(blocks("smollm2")));
    let path = copy.path().join("text_decoder.safetensors");
    let whole = arrays(&path);
    write(&path, &whole);
    open(copy.path()).unwrap();
}

#[test]
fn other_element_types_and_shapes_are_named() {
    let error = error_after(|arrays| find(arrays, MATRIX).dtype = Dtype::U8);
    assert!(error.contains(MATRIX) && error.contains("U8") && error.contains("i8"), "{error}");
    let error = error_after(|arrays| find(arrays, MATRIX).shape.swap(0, 1));
    assert!(error.contains(MATRIX) && error.contains("[160, 64]"), "{error}");
}

#[test]
fn scales_and_multipliers_that_no_quantizer_writes_are_named() {
    for scale in [0.0f32, -1.0, f32::NAN, f32::INFINITY] {
        let error = error_after(|arrays| {
            find(arrays, &format!("{MATRIX}.scale")).data[..4].copy_from_slice(&scale.to_le_bytes());
        });
        assert!(error.contains(MATRIX) && error.contains("scale"), "{scale}: {error}");
    }
    for multiplier in [0, 17] {
        let error = error_after(|arrays| find(arrays, &format!("{MATRIX}.multiplier")).data[3] = multiplier);
        assert!(error.contains(MATRIX) && error.contains(&format!("multiplier {multiplier}")), "{error}");
    }
}

#[test]
fn missing_and_unknown_arrays_are_noticed() {
    for name in [MATRIX.to_owned(), format!("{MATRIX}.scale"), format!("{MATRIX}.multiplier")] {
        let error = error_after(|arrays| arrays.retain(|array| array.name != name));
        assert!(error.contains(&name), "{error}");
    }
    let error = error_after(|arrays| {
        arrays.push(Array { name: "stray".into(), dtype: Dtype::U8, shape: vec![1], data: vec![0] });
    });
    assert!(error.contains("arrays, the model says"), "{error}");
}

#[test]
fn integers_outside_of_their_grid_are_found_when_they_are_counted() {
    let copy = copy_of(&quantized(blocks("smollm2")));
    let path = copy.path().join("text_decoder.safetensors");
    let mut all = arrays(&path);
    find(&mut all, MATRIX).data[5] = 8;
    write(&path, &all);
    let file = ComponentFile::open(&copy.path().join("text_decoder.json")).unwrap();
    let error = file.open_weights(&path).unwrap().summaries().unwrap_err().to_string();
    assert!(error.contains(MATRIX) && error.contains("-7 to 7"), "{error}");
}

#[test]
fn a_grid_without_an_encoding_is_noticed() {
    let copy = copy_of(&quantized(wide("smollm2")));
    let path = copy.path().join("text_decoder.json");
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let file = ComponentFile::open(&path).unwrap();
    let grids = file.weights.iter().filter(|(_, stored)| matches!(stored.form, StoredForm::Grid { .. }));
    let name = grids.map(|(name, _)| name.clone()).next().expect("norms are on one grid");
    json["weights"][&name]["encoding"] = serde_json::Value::Null;
    std::fs::write(&path, json.to_string()).unwrap();
    let error = open(copy.path()).unwrap_err().to_string();
    assert!(error.contains(&name) && error.contains("no encoding"), "{error}");
}

#[test]
fn truncated_and_changed_files_are_noticed() {
    let model = quantized(blocks("smollm2"));
    for file in ["text_decoder.safetensors", "text_decoder.json"] {
        let copy = copy_of(&model);
        let path = copy.path().join(file);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 7]).unwrap();
        let error = QuantizedModel::open(copy.path()).unwrap_err().to_string();
        assert!(error.contains("text_decoder") && error.contains("truncated"), "{error}");
        assert!(open(copy.path()).is_err(), "{file}");
        // As long as it was, but another byte.
        let mut changed = bytes.clone();
        let at = changed.len() - 3;
        changed[at] = changed[at].wrapping_add(1);
        std::fs::write(&path, &changed).unwrap();
        let error = QuantizedModel::open(copy.path()).unwrap().artefact().verify_hashes().unwrap_err().to_string();
        assert!(error.contains("text_decoder") && error.contains("sha256"), "{error}");
    }
}

#[test]
fn reports_graphs_and_components_that_are_malformed_are_named() {
    let model = quantized(blocks("smollm2"));
    for file in ["report.json", "graphs.json"] {
        let copy = copy_of(&model);
        std::fs::write(copy.path().join(file), "{").unwrap();
        let error = QuantizedModel::open(copy.path()).unwrap_err().to_string();
        assert!(error.contains(file) && error.contains("line 1"), "{error}");
    }
    let copy: PathBuf = copy_of(&model).keep();
    let path = copy.join("text_decoder.json");
    for (key, value) in [("format", "x"), ("schema_version", "2")] {
        let mut json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(super::json_path(&model, "text_decoder")).unwrap()).unwrap();
        json[key] = value.into();
        std::fs::write(&path, json.to_string()).unwrap();
        let error = ComponentFile::open(&path).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
    std::fs::remove_dir_all(copy).unwrap();
}
