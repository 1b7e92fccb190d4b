//! The one error type of the library, and the stable status codes it has in the C ABI.
//!
//! Every message names the thing, the value that was found and, where there is one, the way out. Nothing a user
//! controls (files, options, prompts, templates) may panic: it ends in one of these.

use std::path::{Path, PathBuf};

/// `Result` with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. `code()` gives the number the C ABI returns.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An argument or option has a value that is not allowed.
    #[error("{0}")]
    InvalidArgument(String),
    /// The named thing (file, model, option, graph, tensor) does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The operating system refused a file operation.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file from outside is malformed: which file, which field, why.
    #[error("{file}: {field}: {reason}")]
    Format {
        /// The file (or "options", "template", … for text handed in).
        file: String,
        /// The field, tensor or line.
        field: String,
        /// What is wrong with it, with the value found.
        reason: String,
    },
    /// A well-formed request for something this build cannot do.
    #[error("{0}")]
    Unsupported(String),
    /// The conversation does not fit: both numbers, in token slots.
    #[error(
        "{what} needs {needed} tokens but the context capacity is {capacity} tokens: shorten the prompt, reset or \
         rewind the conversation, or compile with a larger --max-context"
    )]
    ContextFull {
        /// What was asked for.
        what: String,
        /// Slots that would be needed (history + prompt + reserve).
        needed: usize,
        /// Slots there are.
        capacity: usize,
    },
    /// The call is not allowed in the handle's present state.
    #[error("{0}")]
    InvalidState(String),
    /// An engine call failed half way; only reset and free are allowed now.
    #[error("session is poisoned by an earlier failure ({0}); reset it to go on")]
    Poisoned(String),
    /// The handle is in use by another call.
    #[error("{0}")]
    Busy(String),
    /// The caller's progress callback or `cancel` ended the work.
    #[error("cancelled")]
    Cancelled,
    /// The engine could not load or execute.
    #[error("engine {engine}: {reason}")]
    Engine {
        /// Engine name, e.g. `cpu`.
        engine: String,
        /// Its own words.
        reason: String,
    },
    /// A stage of the pipeline failed; its code is that of the cause.
    #[error("[{stage}] {source}")]
    Stage {
        /// Name of the stage, e.g. `quantization`.
        stage: &'static str,
        /// Why.
        source: Box<Error>,
    },
    /// The pipeline was set up wrong; found before any stage ran.
    #[error("pipeline configuration: {0}")]
    Config(String),
    /// An engine or backend that this build does not have, or that cannot do what was asked.
    #[error("engine {engine} is not available: {reason}")]
    EngineNotAvailable {
        /// Its name.
        engine: String,
        /// Why, and what there is instead.
        reason: String,
    },
    /// A bug of this library.
    #[error("internal error: {0} (please report this)")]
    Internal(String),
}

/// Status codes of the C ABI (`int32_t`): 0 is success, negative an error, positive informational.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    /// Success.
    Ok = 0,
    /// See [`Error::InvalidArgument`].
    InvalidArgument = -1,
    /// See [`Error::NotFound`].
    NotFound = -2,
    /// See [`Error::Io`].
    Io = -3,
    /// See [`Error::Format`].
    Format = -4,
    /// See [`Error::Unsupported`].
    Unsupported = -5,
    /// See [`Error::ContextFull`].
    ContextFull = -6,
    /// See [`Error::InvalidState`].
    InvalidState = -7,
    /// See [`Error::Poisoned`].
    Poisoned = -8,
    /// See [`Error::Busy`].
    Busy = -9,
    /// See [`Error::Cancelled`].
    Cancelled = -10,
    /// See [`Error::Engine`].
    Engine = -11,
    /// See [`Error::Internal`]; also a caught panic.
    Internal = -12,
    /// The caller's buffer is too small; the needed size was written.
    BufferTooSmall = -13,
}

impl Error {
    /// The status code of the C ABI.
    pub fn code(&self) -> Status {
        match self {
            Error::InvalidArgument(_) => Status::InvalidArgument,
            Error::NotFound(_) => Status::NotFound,
            Error::Io { .. } => Status::Io,
            Error::Format { .. } => Status::Format,
            Error::Unsupported(_) => Status::Unsupported,
            Error::ContextFull { .. } => Status::ContextFull,
            Error::InvalidState(_) => Status::InvalidState,
            Error::Poisoned(_) => Status::Poisoned,
            Error::Busy(_) => Status::Busy,
            Error::Cancelled => Status::Cancelled,
            Error::Engine { .. } => Status::Engine,
            Error::Stage { source, .. } => source.code(),
            Error::Config(_) => Status::InvalidArgument,
            Error::EngineNotAvailable { .. } => Status::Unsupported,
            Error::Internal(_) => Status::Internal,
        }
    }

    /// An [`Error::InvalidArgument`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Error::InvalidArgument(message.into())
    }

    /// An [`Error::Io`] for `path`; a missing file becomes [`Error::NotFound`].
    pub fn io(path: impl AsRef<Path>, source: std::io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        if source.kind() == std::io::ErrorKind::NotFound {
            return Error::NotFound(format!("{}: no such file or folder", path.display()));
        }
        Error::Io { path, source }
    }

    /// An [`Error::Format`].
    pub fn format(file: impl AsRef<Path>, field: impl Into<String>, reason: impl Into<String>) -> Self {
        Error::Format { file: file.as_ref().display().to_string(), field: field.into(), reason: reason.into() }
    }

    /// An [`Error::Internal`].
    pub fn internal(message: impl Into<String>) -> Self {
        Error::Internal(message.into())
    }
}
