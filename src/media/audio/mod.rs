//! Sound: from what a caller has to what an audio encoder takes.
//!
//! In reading order: the handle (`source`); what it is made from (`wav`); then the processor: another sample rate
//! (`resample`), mel spectrograms (`mel`), the checkpoint's settings (`config`), and the whole (`processor`).

mod config;
mod mel;
mod processor;
mod resample;
mod source;
mod wav;

pub use processor::{AudioProcessor, FeatureTensor};
pub use source::Audio;
