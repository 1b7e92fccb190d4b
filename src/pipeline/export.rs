//! What can be made of a quantized model for others: encodings for converters, recipes to try next.

use super::files::write_atomically;
use super::quantization::QuantizedModel;
use crate::error::{Error, Result};
use crate::graph::Op;
use crate::quantize::{AimetVersion, ComponentFile, Suggestion, aimet_encodings, suggest};
use std::path::{Path, PathBuf};

impl QuantizedModel {
    /// Graphs, grids and recipe of a component.
    ///
    /// # Errors
    /// [`Error::NotFound`] for a component the model does not have; what its file reports.
    pub fn component(&self, name: &str) -> Result<ComponentFile> {
        ComponentFile::open(&self.artefact().component_path(name)?)
    }

    /// Write the encodings of a component as AIMET does, see [`aimet_encodings`]. A file of that name is replaced when the new one
    /// is complete.
    ///
    /// # Errors
    /// As [`aimet_encodings`]; [`Error::Io`].
    pub fn save_aimet_encodings(&self, component: &str, version: AimetVersion, path: &Path) -> Result<()> {
        let file = self.component(component)?;
        let weights = file.open_weights(&self.artefact().component_path(component)?.with_extension("safetensors"))?;
        let encodings = aimet_encodings(self.graphs(), &file, &weights, version)?;
        let json = serde_json::to_vec_pretty(&encodings).map_err(|e| Error::internal(format!("encodings: {e}")))?;
        write_atomically(path, &json)
    }

    /// Recipes with more bits where the component's report says that they are needed, see [`suggest`].
    ///
    /// # Errors
    /// [`Error::InvalidState`] if the component was not compared with the float one; what its file reports.
    pub fn suggest(&self, component: &str) -> Result<Suggestion> {
        let file = self.component(component)?;
        let layers = self.report().components.get(component).map(|report| report.layers.as_slice()).unwrap_or_default();
        if layers.is_empty() {
            return Err(Error::InvalidState(format!(
                "component {component} was not compared with the float model: quantize it with one or more report samples"
            )));
        }
        let matrices = file.graphs.iter().take(1).flat_map(|bundle| {
            let linear = bundle.graph.nodes.iter().filter(|node| node.op == Op::Linear);
            linear.filter_map(|node| bundle.graph.value(node.inputs[1]).info.shape.last().copied())
        });
        suggest(&self.report().model, layers, &matrices.collect::<Vec<_>>(), file.recipe.as_ref())
    }
}

/// Write a page, see [`report_page`](super::report_page). A file of that name is replaced when the new one is complete.
///
/// # Errors
/// [`Error::Io`].
pub fn save_page(html: &str, path: &Path) -> Result<()> {
    write_atomically(path, html.as_bytes())
}

/// Write a suggestion into the folder `dir`, each file complete or not at all; the files that were written.
///
/// # Errors
/// As [`Suggestion::files`]; [`Error::Io`].
pub fn save_suggestion(suggestion: &Suggestion, dir: &Path) -> Result<Vec<PathBuf>> {
    let write = |(name, text): (String, String)| {
        let path = dir.join(name);
        write_atomically(&path, text.as_bytes())?;
        Ok(path)
    };
    suggestion.files()?.into_iter().map(write).collect()
}
