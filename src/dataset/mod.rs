//! Calibration data in: files that people write to token ids and media, as the model will meet them.
//!
//! [`load`] reads the sources that [`DatasetOptions`] name, in this order: token rows, conversations, chat sets, plain
//! texts, random ids. It gives a [`CalibrationSet`]: one [`Sample`] a forward pass, without padding. Prompts are written by
//! the runner's own template and tokenizer ([`ModelText`]), so that ranges are observed on what the model is fed later. A
//! [`Medium`] is checked to decode and counted in rows here; its tensor is made on demand.
//!
//! In reading order: what is asked for (`options`), what the model brings (`model`), what comes out (`sample`, `set`), and
//! how: the message schema (`conversation`), files (`files`), one function a source (`sources`).

mod conversation;
mod files;
mod model;
mod options;
mod sample;
mod set;
mod sources;

pub use model::{AudioText, ModelText, ModelTextParts};
pub use options::{DatasetOptions, RandomData, Shard};
pub use sample::{Medium, Sample};
pub use set::{CalibrationSet, JoinedSources, SourceKind, SourceSummary};

use crate::error::Result;
use set::Collector;

/// Reads all sources that `options` name.
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for options out of range, no source at all (it lists the
/// options of the command line) or a shard without samples; otherwise the file, the index or line of the sample, and the
/// field: [`Error::Format`](crate::Error::Format) for what is malformed, unknown, empty, too long or does not fit
/// together, [`Error::NotFound`](crate::Error::NotFound) for a missing file.
pub fn load(options: &DatasetOptions, model: &ModelText) -> Result<CalibrationSet> {
    options.validate()?;
    let mut collector = Collector::new(options, model);
    for path in &options.token_rows {
        sources::token_rows(&mut collector, path)?;
    }
    for path in &options.samples {
        sources::conversations(&mut collector, path)?;
    }
    for path in &options.chats {
        sources::chats(&mut collector, path)?;
    }
    for path in &options.texts {
        sources::text(&mut collector, path)?;
    }
    if let Some(random) = &options.random {
        sources::random(&mut collector, random)?;
    }
    collector.finish()
}
