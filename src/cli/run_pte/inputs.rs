//! What a conversation is given in files: pictures, sound and token ids.

use etgenai::media::{Audio, DecodeOptions, Image};
use etgenai::{Error, Result};
use std::path::{Path, PathBuf};

/// The pictures that `--image_path` means: those a list file names, or the file itself if it is a picture.
///
/// `side`: of the square picture the encoder takes. A file of exactly its three planes of f32 is such a tensor; any other
/// file is decoded.
///
/// # Errors
/// [`Error::NotFound`] or [`Error::Io`] naming the file, [`Error::InvalidArgument`] for a file that is neither, with both
/// sizes.
pub fn pictures(path: &Path, side: usize) -> Result<Vec<Image>> {
    let tensor = 3usize.saturating_mul(side).saturating_mul(side);
    let kind = Kind { name: "picture", tensor, shape: format!("3 x {side} x {side}"), is_encoded: is_picture };
    let image = |file: Given| match file.tensor {
        Some(values) => Image::from_tensor(values, [1, 3, side, side]),
        None => Image::open(&file.path, &DecodeOptions::default()),
    };
    files(path, &kind)?.into_iter().map(image).collect()
}

/// The audio clips that `--audio_path` means: those a list file names, or the file itself if it is one.
///
/// `features`: numbers of an input of the encoder. A file of exactly as many f32 is such an input; a WAV file is decoded.
///
/// # Errors
/// As [`pictures`].
pub fn audio(path: &Path, features: usize) -> Result<Vec<Audio>> {
    let kind = Kind { name: "WAV file", tensor: features, shape: format!("of {features} numbers"), is_encoded: is_wav };
    let clip = |file: Given| match file.tensor {
        Some(values) => {
            Audio::from_features(values).map_err(|error| Error::invalid(format!("{}: {error}", file.path.display())))
        }
        None => Audio::open(&file.path),
    };
    files(path, &kind)?.into_iter().map(clip).collect()
}

/// What a file of a list may hold.
struct Kind {
    name: &'static str,
    /// Numbers of a ready tensor, and what it is like.
    tensor: usize,
    shape: String,
    /// Whether a file begins like one that is decoded.
    is_encoded: fn(&[u8]) -> bool,
}

/// A file that holds a tensor, or else is to be decoded.
struct Given {
    path: PathBuf,
    tensor: Option<Vec<f32>>,
}

/// What `path` holds, or the files of the list that it is.
fn files(path: &Path, kind: &Kind) -> Result<Vec<Given>> {
    let bytes = read(path)?;
    if let Some(file) = kind.recognize(path, &bytes) {
        return Ok(vec![file]);
    }
    let list = String::from_utf8(bytes).map_err(|_| {
        Error::format(path, "content", format!("neither a {}, nor a tensor, nor a list of paths", kind.name))
    })?;
    let file = |path: PathBuf| {
        let bytes = read(&path)?;
        kind.recognize(&path, &bytes).ok_or_else(|| {
            let (have, want) = (bytes.len(), kind.tensor_bytes());
            Error::invalid(format!(
                "{}: {have} bytes are neither a {} nor the {want} bytes of a f32 tensor {}",
                path.display(),
                kind.name,
                kind.shape
            ))
        })
    };
    listed(&list).into_iter().map(file).collect()
}

impl Kind {
    fn tensor_bytes(&self) -> usize {
        self.tensor.saturating_mul(size_of::<f32>())
    }

    /// What a file is, if it looks like either.
    fn recognize(&self, path: &Path, bytes: &[u8]) -> Option<Given> {
        let path = path.to_owned();
        if bytes.len() == self.tensor_bytes() {
            let words = bytes.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap_or_default()));
            return Some(Given { path, tensor: Some(words.collect()) });
        }
        (self.is_encoded)(bytes).then_some(Given { path, tensor: None })
    }
}

/// Paths in a list: lines of them with single spaces between. A line that is a file as a whole is one path, spaces and all.
fn listed(list: &str) -> Vec<PathBuf> {
    let lines = list.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    let paths = lines.flat_map(|line| match Path::new(line).is_file() {
        true => vec![line],
        false => line.split(' ').filter(|path| !path.is_empty()).collect(),
    });
    paths.map(PathBuf::from).collect()
}

/// Whether a file begins like JPEG, PNG, GIF, BMP or WebP.
fn is_picture(bytes: &[u8]) -> bool {
    const BEGINNINGS: [&[u8]; 5] = [b"\xFF\xD8\xFF", b"\x89PNG\r\n\x1A\n", b"GIF87a", b"GIF89a", b"BM"];
    let is_webp = bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP");
    is_webp || BEGINNINGS.iter().any(|beginning| bytes.starts_with(beginning))
}

/// Whether a file begins like WAV.
fn is_wav(bytes: &[u8]) -> bool {
    bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WAVE")
}

/// The token ids of a file: 64-bit little-endian, nothing else.
///
/// # Errors
/// [`Error::NotFound`] or [`Error::Io`], [`Error::Format`] for a size that is no whole number of ids, none at all, or an
/// id that is none.
pub fn token_ids(path: &Path) -> Result<Vec<u32>> {
    let bytes = read(path)?;
    if bytes.is_empty() || !bytes.len().is_multiple_of(8) {
        let reason = format!("{} bytes are no list of ids of 8 bytes", bytes.len());
        return Err(Error::format(path, "size", reason));
    }
    let ids = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
    let id = |(index, id): (usize, u64)| {
        u32::try_from(id).map_err(|_| Error::format(path, format!("id number {index}"), format!("{id} is no token id")))
    };
    ids.enumerate().map(id).collect()
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Error::NotFound(format!("{}: there is no such file", path.display())),
        _ => Error::io(path, e),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIDE: usize = 2;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn write(folder: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn tensor(first: f32) -> Vec<u8> {
        (0..12u8).flat_map(|at| (first + f32::from(at)).to_le_bytes()).collect()
    }

    #[test]
    fn lists_hold_lines_of_paths() {
        assert_eq!(listed("a.raw b.raw\r\n\nc.raw\n"), ["a.raw", "b.raw", "c.raw"].map(PathBuf::from));
        assert_eq!(listed("a  b"), ["a", "b"].map(PathBuf::from));
        assert!(listed("\r\n\n").is_empty());
        let folder = folder();
        let spaced = write(&folder, "a picture", b"");
        assert_eq!(listed(&format!("{}\n", spaced.display())), [spaced]);
    }

    #[test]
    fn tensors_and_pictures_mix() {
        let folder = folder();
        let raw = write(&folder, "a.raw", &tensor(1.0));
        let png = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/media/gray_33x47.png");
        let list = write(&folder, "list.txt", format!("{} {}\n", raw.display(), png.display()).as_bytes());
        let pictures_of = |path: &Path| pictures(path, SIDE).unwrap();
        let [a, b] = &pictures_of(&list)[..] else { panic!("two pictures") };
        assert_eq!(a.tensor().map(|(values, _)| (values.len(), values[0], values[11])), Some((12, 1.0, 12.0)));
        assert_eq!((b.width(), b.height()), (33, 47));
        assert_eq!(pictures_of(&raw), std::slice::from_ref(a));
        assert_eq!(pictures_of(&png), std::slice::from_ref(b));
    }

    #[test]
    fn files_that_are_no_pictures_name_both_sizes() {
        let folder = folder();
        let short = write(&folder, "short.raw", &tensor(0.0)[..44]);
        let list = write(&folder, "list.txt", short.display().to_string().as_bytes());
        let error = pictures(&list, SIDE).unwrap_err().to_string();
        assert!(error.contains("44 bytes are neither a picture nor the 48 bytes of a f32 tensor 3 x 2 x 2"), "{error}");
        let error = pictures(&short, SIDE).unwrap_err().to_string();
        assert!(error.contains("short.raw"), "{error}");
        let list = write(&folder, "list.txt", b"there/is/no.raw");
        assert!(matches!(pictures(&list, SIDE), Err(Error::NotFound(text)) if text.contains("there/is/no.raw")));
        let damaged = write(&folder, "damaged.png", b"\x89PNG\r\n\x1A\n....");
        assert!(pictures(&damaged, SIDE).is_err());
    }

    #[test]
    fn features_and_wav_files_mix() {
        let folder = folder();
        let raw = write(&folder, "a.raw", &tensor(1.0));
        let wav = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/media/chirp_16k_21920.wav");
        let list = write(&folder, "list.txt", format!("{}\n{}\n", raw.display(), wav.display()).as_bytes());
        let [a, b] = &audio(&list, 12).unwrap()[..] else { panic!("two clips") };
        assert_eq!(a.features().map(|values| (values.len(), values[11])), Some((12, 12.0)));
        assert_eq!(b.samples().map(|(samples, rate)| (samples.len(), rate)), Some((21_920, 16_000)));
        assert_eq!(audio(&raw, 12).unwrap(), std::slice::from_ref(a));
        assert_eq!(audio(&wav, 12).unwrap(), std::slice::from_ref(b));
        let error = audio(&list, 13).unwrap_err().to_string();
        assert!(error.contains("48 bytes are neither a WAV file nor the 52 bytes of a f32 tensor of 13"), "{error}");
        let nan = write(&folder, "nan.raw", &[f32::NAN.to_le_bytes(); 12].concat());
        let error = audio(&nan, 12).unwrap_err().to_string();
        assert!(error.contains("nan.raw") && error.contains("number 0 of the features is NaN"), "{error}");
        let damaged = write(&folder, "damaged.wav", b"RIFF....WAVE....");
        assert!(audio(&damaged, 12).is_err());
    }

    #[test]
    fn token_files_hold_whole_ids() {
        let folder = folder();
        let bytes: Vec<u8> = [1u64, 403, 407].iter().flat_map(|id| id.to_le_bytes()).collect();
        assert_eq!(token_ids(&write(&folder, "ids", &bytes)).unwrap(), [1, 403, 407]);
        for (bytes, says) in [(&bytes[..9], "9 bytes are no list"), (b"", "0 bytes"), (&[0xFF; 8], "id number 0")] {
            let error = token_ids(&write(&folder, "bad", bytes)).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        assert!(matches!(token_ids(&folder.path().join("none")), Err(Error::NotFound(_))));
    }
}
