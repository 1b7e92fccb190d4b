//! The built-in CPU engine.
//!
//! A component file is mapped, each of its graphs becomes a *plan*: a list of fused steps over memory that was assigned
//! once. Executing a graph runs through the steps; weights are read where the file is mapped, keys and values are
//! written straight into the caller's tensors.
//!
//! - `weights`: the component's weights by number.
//! - `plan`: graph to steps.
//! - `execute`, `attention`, `self_attention`, `generic`: steps to arithmetic.
//! - [`kernels`]: the arithmetic, for each instruction set.
//! - [`pool`]: the threads.
//! - `profile`: where the time went.

mod attention;
mod component;
mod execute;
pub(crate) mod generic;
pub mod kernels;
mod plan;
pub mod pool;
mod profile;
mod self_attention;
mod weights;

use super::{ComponentSource, Engine, LoadedComponent, SourceData};
use crate::artefact::Component;
use crate::error::{Error, Result};
use kernels::Kernels;
use pool::Pool;
use std::sync::Arc;

/// How the engine works.
#[derive(Debug, Clone, Default)]
pub struct CpuOptions {
    /// Threads that compute, the caller's included. `None`: one per physical core.
    pub threads: Option<usize>,
    /// Instruction set. `None`: the fastest this processor has.
    pub kernels: Option<Kernels>,
}

/// Runs components on the processor. Components loaded by one engine share its threads.
#[derive(Debug)]
pub struct CpuEngine {
    kernels: Kernels,
    pool: Arc<Pool>,
}

impl CpuEngine {
    /// Start an engine: choose the kernels, start the threads.
    pub fn new(options: CpuOptions) -> Self {
        let threads = options.threads.unwrap_or_else(pool::physical_cores);
        let kernels = options.kernels.unwrap_or_else(Kernels::detect);
        Self { kernels, pool: Arc::new(Pool::new(threads)) }
    }
}

impl Default for CpuEngine {
    fn default() -> Self {
        Self::new(CpuOptions::default())
    }
}

impl Engine for CpuEngine {
    fn name(&self) -> &str {
        "cpu"
    }

    fn load(&self, source: &ComponentSource) -> Result<Box<dyn LoadedComponent>> {
        let component = match &source.data {
            SourceData::File(path) => Component::open(path)?,
            SourceData::Bytes(bytes) => Component::from_bytes(bytes.clone())?,
            SourceData::Held => {
                let name = &source.component;
                return Err(Error::NotFound(format!("the CPU engine holds no component {name}: give it a file")));
            }
        };
        Ok(Box::new(component::CpuComponent::new(component, self.kernels, Arc::clone(&self.pool))?))
    }
}
